"""Recurrent layers in programs: one step, parameters, precision, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._program.frame import open_frame
from tests.layers.programs import normal
from tests.layers.recurrent_cases import RANDOM, make_frame, pad


@pytest.mark.parametrize("bias_attr", [RANDOM, False])
def test_lstm_unit_is_fluids_formula(bias_attr):
    x, h, c = normal(2, 4), normal(2, 3, seed=1), normal(2, 3, seed=2)

    def program():
        fed = [layers.data(name, [size]) for name, size in (("x", 4), ("h", 3), ("c", 3))]
        return layers.lstm_unit(*fed, 1.5, RANDOM, bias_attr, name="unit")

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    state = builder.init()
    hidden, cell = builder.infer(state, {"x": x, "h": h, "c": c})
    params = {key: np.asarray(value) for key, value in state.variables["params"]["unit"].items()}
    assert params["w"].shape == (7, 12)
    a = np.concatenate([x, h], axis=1) @ params["w"] + params.get("b", np.zeros(12))
    i, f, o, g = np.split(a, 4, axis=1)
    expected = sigmoid(f + 1.5) * c + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(cell, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(hidden, sigmoid(o) * np.tanh(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("origin_mode", [False, True])
def test_gru_unit_is_fluids_formula(origin_mode):
    x, h = normal(2, 9), normal(2, 3, seed=1)

    def program():
        fed = layers.data("x", [9]), layers.data("h", [3])
        return layers.gru_unit(*fed, 9, RANDOM, RANDOM, origin_mode=origin_mode, name="unit")

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    state = builder.init()
    new, kept, gates = builder.infer(state, {"x": x, "h": h})
    params = {key: np.asarray(value) for key, value in state.variables["params"]["unit"].items()}
    assert (params["w"].shape, params["b"].shape) == ((3, 9), (1, 9))
    u, r = np.split(sigmoid((x + params["b"])[:, :6] + h @ params["w"][:, :6]), 2, axis=1)
    m = np.tanh((x + params["b"])[:, 6:] + (r * h) @ params["w"][:, 6:])
    expected = u * h + (1 - u) * m if origin_mode else (1 - u) * h + u * m
    np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kept, r * h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gates, np.concatenate([u, r, m], axis=1), rtol=1e-5, atol=1e-6)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_parameters_have_fluids_shapes():
    def program():
        x, y = (layers.data(n, [s], lod_level=1) for n, s in (("x", 12), ("y", 9)))
        layers.dynamic_lstm(x, 12, param_attr="weight")
        layers.dynamic_lstm(x, 12, use_peepholes=False)
        layers.dynamic_lstmp(x, 12, 2, param_attr="mine")
        layers.bidirectional_gru(y, 2, param_attr="two", bias_attr=False)
        return layers.dynamic_gru(y, 3)

    rows = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1]).parameter_table()
    assert {row.name: row.shape for row in rows} == {
        "weight": (3, 12),
        "dynamic_lstm_0/b": (1, 21),
        "dynamic_lstm_1/w": (3, 12),
        "dynamic_lstm_1/b": (1, 12),
        "mine": (2, 12),
        "mine_proj": (3, 2),
        "dynamic_lstmp_0/b": (1, 21),
        "two_forward_w_x": (9, 6),
        "two_forward_w": (2, 6),
        "two_backward_w_x": (9, 6),
        "two_backward_w": (2, 6),
        "dynamic_gru_0/w": (3, 9),
        "dynamic_gru_0/b": (1, 9),
    }


@pytest.mark.slow
def test_lstm_and_gru_train_in_bfloat16_on_several_devices_with_wide_cells():
    dtypes = {}

    def program():
        x = layers.data("x", [5], lod_level=1, buckets=[4])
        hidden, cell = layers.dynamic_lstm(x.map(lambda rows: layers.fc(rows, 12)), 12)
        states = layers.dynamic_gru(hidden.map(lambda rows: layers.fc(rows, 9)), 3)
        dtypes.update(hidden=hidden.values.dtype, cell=cell.values.dtype, gru=states.values.dtype)
        return layers.mean((states.masked() ** 2).sum(axis=(1, 2)).astype("float32"))

    x = [normal(1 + n % 4, 5, seed=n) for n in range(5)]
    losses = {}
    for precision, place in (("float32", 1), ("bfloat16", 2)):
        builder = ps.ProgramBuilder(
            program, optax.sgd(0.05), place=jax.devices()[:place], precision=precision
        )
        state, losses[precision] = builder.init(), []
        for _ in range(5):
            state, loss = builder.train(state, {"x": x})
            losses[precision].append(float(loss))
    assert dtypes == {"hidden": jnp.bfloat16, "cell": jnp.float32, "gru": jnp.bfloat16}
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.05)
    assert losses["float32"][-1] < losses["float32"][0]


ARRAY, WORDS = np.zeros((2, 8), "f"), pad([np.zeros((3, 8), "f")] * 2)
WRONG = {
    r"dynamic_lstm got ndarray and 4 \* hidden = 8, expected a Sequence": (
        lambda: layers.dynamic_lstm(ARRAY, 8)
    ),
    r"dynamic_lstm got a sequence of shape \(2, 3, 8\) and 4 \* hidden = 16.*layers.fc": (
        lambda: layers.dynamic_lstm(WORDS, 16)
    ),
    "dynamic_gru got a sequence of .* 3 .* hidden = 9": lambda: layers.dynamic_gru(WORDS, 3),
    "dynamic_lstm got h_0 alone, expected both": lambda: layers.dynamic_lstm(WORDS, 8, ARRAY),
    r"dynamic_lstm got c_0 of shape \(2, 8\), expected \(2, 2\)": (
        lambda: layers.dynamic_lstm(WORDS, 8, ARRAY, ARRAY)
    ),
    "dynamic_lstm got bias_attr=False, expected a ParamAttr": (
        lambda: layers.dynamic_lstm(WORDS, 8, bias_attr=False)
    ),
    "dynamic_lstm got gate_activation='sigmoyd', expected .* 'sigmoid'": (
        lambda: layers.dynamic_lstm(WORDS, 8, gate_activation="sigmoyd")
    ),
    "dynamic_lstmp got cell_clip=-1.0, expected None or a positive": (
        lambda: layers.dynamic_lstmp(WORDS, 8, 1, cell_clip=-1.0)
    ),
    "bidirectional_lstm got ndarray of shape .2, 8., expected a Sequence": (
        lambda: layers.bidirectional_lstm(ARRAY, 2)
    ),
    "lstm_unit got x_t of shape .* expected .B, features.": (
        lambda: layers.lstm_unit(ARRAY, ARRAY, ARRAY[:, :3])
    ),
    "gru_unit got an input of shape .* size=9, expected": (
        lambda: layers.gru_unit(ARRAY, ARRAY, 9)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message):
    with (
        open_frame(make_frame(is_probe=True)),
        pytest.raises(ps.ProgramError, match=rf"layers\.{message}"),
    ):
        WRONG[message]()

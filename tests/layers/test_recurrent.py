"""Recurrent layers against loops over the words of one example, written from Fluid's formulas."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._program.examples import RowAnswers
from penstock._program.frame import Frame, open_frame
from tests.layers.programs import infer, normal

HIDDEN, LENGTHS = 3, np.array([4, 1, 2, 0], np.int32)  # the last is empty

BATCH = len(LENGTHS)
RANDOM = layers.ParamAttr(initializer=jax.nn.initializers.normal(0.5))
GATES = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "identity": lambda x: x,
}


def lstm_loop(
    x,
    params,
    h,
    c,
    *,
    peepholes=True,
    reverse=False,
    acts=("sigmoid", "tanh", "tanh"),
    project=lambda h: h,
    cell_clip=1e9,
):
    """Return what an LSTM gives for one example `[L, 4 * hidden]`, a word at a time."""
    gate, act_cell, act_candidate = (GATES[name] for name in acts)
    w, b, size = params["w"], params["b"][0], x.shape[1] // 4
    p_i, p_f, p_o = b[4 * size :].reshape(3, size) if peepholes else np.zeros((3, size), "f")
    hiddens: Any = [None] * len(x)
    cells: Any = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        a = (x[t] + h @ w + b[: 4 * size]).reshape(4, size)  # candidate, input, forget, output
        i, f = gate(a[1] + p_i * c), gate(a[2] + p_f * c)
        c = jnp.clip(f * c + i * act_candidate(a[0]), -cell_clip, cell_clip)
        h = project(gate(a[3] + p_o * c) * act_cell(c))
        hiddens[t], cells[t] = h, c
    return jnp.concatenate([jnp.stack(hiddens), jnp.stack(cells)], axis=1)


def gru_loop(x, params, h, *, reverse=False, origin=False, bias=True):
    """Return what a GRU gives for one example `[L, 3 * hidden]`, a word at a time."""
    w, size = params["w"], x.shape[1] // 3
    b = params["b"][0] if bias else np.zeros(3 * size, "f")
    states: Any = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        u = jax.nn.sigmoid(x[t, :size] + h @ w[:, :size] + b[:size])
        r = jax.nn.sigmoid(x[t, size : 2 * size] + h @ w[:, size : 2 * size] + b[size : 2 * size])
        m = jnp.tanh(x[t, 2 * size :] + (r * h) @ w[:, 2 * size :] + b[2 * size :])
        h = u * h + (1 - u) * m if origin else (1 - u) * h + u * m
        states[t] = h
    return jnp.stack(states)


def joined(hidden_and_cell):
    hidden, cell = hidden_and_cell
    return hidden.with_values(jnp.concatenate([hidden.values, cell.values], axis=-1))


def both(loop, params, x, *zeros, **options):
    """Return two loops, one for each direction, over projected words."""
    forward, backward = params["forward"], params["backward"]
    return jnp.concatenate(
        [
            loop(x @ forward["w_x"], forward, *zeros, **options)[:, :HIDDEN],
            loop(x @ backward["w_x"], backward, *zeros, reverse=True, **options)[:, :HIDDEN],
        ],
        axis=1,
    )


def gru_by_function(words, state, name):
    _, states = layers.dynamic_rnn(gru_step(name), state, words)
    return states


def gru_step(name):
    def step(old, word):
        new, *_ = layers.gru_unit(word, old, 3 * HIDDEN, RANDOM, RANDOM, name=name)
        return new, new

    return step


def gru_by_block(words, state, name):
    rnn = layers.DynamicRNN()
    with rnn.block():
        old, word = rnn.memory(init=state), rnn.step_input(words)
        new, *_ = layers.gru_unit(word, old, 3 * HIDDEN, RANDOM, RANDOM, name=name)
        rnn.update_memory(old, new)
        rnn.output(new)
    return rnn()


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and its loop.

    Attributes:
      call: takes words `[B, T, features]`, a state `[B, HIDDEN]` and a name; returns a sequence.
      loop: takes one example `[L, features]`, its parameters and its state; returns `[L, ...]`.
    """

    features: int
    call: Callable[..., Any]
    loop: Callable[..., Any]


ZERO = np.zeros(HIDDEN, "f")
EXOTIC = ("identity", "relu", "identity")
ATTRS = {"param_attr": RANDOM, "bias_attr": RANDOM}
CASES = {
    "lstm": Case(
        12,
        lambda x, s, name: joined(layers.dynamic_lstm(x, 12, name=name, **ATTRS)),
        lambda x, p, s: lstm_loop(x, p, ZERO, ZERO),
    ),
    "lstm reversed, from a state, without peepholes": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstm(
                x, 12, s, 2 * s, use_peepholes=False, is_reverse=True, name=name, **ATTRS
            )
        ),
        lambda x, p, s: lstm_loop(x, p, s, 2 * s, peepholes=False, reverse=True),
    ),
    "lstm of other activations": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstm(
                x,
                12,
                gate_activation="identity",
                cell_activation="relu",
                candidate_activation="identity",
                param_attr=layers.ParamAttr(initializer=jax.nn.initializers.normal(0.1)),
                bias_attr=layers.ParamAttr(initializer=jax.nn.initializers.normal(0.1)),
                name=name,
            )
        ),
        lambda x, p, s: lstm_loop(x, p, ZERO, ZERO, acts=EXOTIC),
    ),
    "lstmp": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstmp(
                x, 12, 2, name=name, h_0=s[:, :2], c_0=s, cell_clip=0.5, proj_clip=0.4, **ATTRS
            )
        ),
        lambda x, p, s: lstm_loop(
            x,
            p,
            s[:2],
            s,
            project=lambda h: jnp.clip(jnp.tanh(h @ p["w_proj"]), -0.4, 0.4),
            cell_clip=0.5,
        ),
    ),
    "lstmp reversed": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstmp(
                x, 12, 2, is_reverse=True, proj_activation="identity", name=name, **ATTRS
            )
        ),
        lambda x, p, s: lstm_loop(
            x, p, ZERO[:2], ZERO, reverse=True, project=lambda h: h @ p["w_proj"]
        ),
    ),
    "gru": Case(
        9,
        lambda x, s, name: layers.dynamic_gru(x, HIDDEN, name=name, **ATTRS),
        lambda x, p, s: gru_loop(x, p, ZERO),
    ),
    "gru reversed, from a state, of the first paper": Case(
        9,
        lambda x, s, name: layers.dynamic_gru(
            x, HIDDEN, is_reverse=True, h_0=s, origin_mode=True, name=name, **ATTRS
        ),
        lambda x, p, s: gru_loop(x, p, s, reverse=True, origin=True),
    ),
    "gru without biases": Case(
        9,
        lambda x, s, name: layers.dynamic_gru(x, HIDDEN, RANDOM, False, name=name),
        lambda x, p, s: gru_loop(x, p, ZERO, bias=False),
    ),
    "bidirectional lstm": Case(
        4,
        lambda x, s, name: layers.bidirectional_lstm(x, HIDDEN, name=name, **ATTRS),
        lambda x, p, s: both(lstm_loop, p, x, ZERO, ZERO),
    ),
    "bidirectional gru": Case(
        4,
        lambda x, s, name: layers.bidirectional_gru(x, HIDDEN, name=name, **ATTRS),
        lambda x, p, s: both(gru_loop, p, x, ZERO),
    ),
    "gru as a function of one step": Case(9, gru_by_function, lambda x, p, s: gru_loop(x, p, s)),
    "gru as a block": Case(9, gru_by_block, lambda x, p, s: gru_loop(x, p, s)),
}


STATE = normal(BATCH, HIDDEN, seed=9)


def words_of(case: Case) -> list[np.ndarray]:
    return [normal(length, case.features, seed=n) for n, length in enumerate(LENGTHS)]


def pad(words: list[np.ndarray]) -> ps.Sequence:
    """Return one batch, with numbers in the padding that one product more would make infinite."""
    values = np.full((len(words), max(map(len, words)), words[0].shape[1]), 1e30, np.float32)
    for row, each in enumerate(words):
        values[row, : len(each)] = each
    return ps.Sequence(jnp.asarray(values), jnp.array([len(each) for each in words], jnp.int32))


def weigh(values: Any) -> Any:
    """Return another weight for each number `[T, D]` of one example."""
    columns = jnp.sin(1 + jnp.arange(values.shape[1], dtype="float32")).reshape(1, -1)
    return columns * (1 + jnp.arange(len(values), dtype="float32").reshape(-1, 1))


def make_frame(variables: Any = None, is_probe: bool = False) -> Frame:
    return Frame(
        mode="train",
        variables=variables or {},
        feed=None if is_probe else {},
        weights=jnp.ones(BATCH),
        key=jax.random.key(0),
        num_devices=1,
        rows=RowAnswers(BATCH),
    )


def random_params(name: str) -> Any:
    """Return parameters of a case, under its name."""
    case, params = CASES[name], {}
    with open_frame(make_frame(is_probe=True)) as frame:
        jax.eval_shape(lambda words: case.call(words, STATE, name), pad(words_of(case)))
    for number, (path, spec) in enumerate(frame.requests.specs.items()):
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = 0.5 * normal(*spec.shape, seed=number)
    return params


def apply(name: str, params: Any, words: ps.Sequence, state: Any) -> ps.Sequence:
    with open_frame(make_frame({"params": params})):
        return CASES[name].call(words, state, name)


@pytest.mark.parametrize("name", CASES)
def test_each_example_gives_what_a_loop_gives_for_it_alone_gradients_too(name):
    case, params = CASES[name], random_params(name)
    words = pad(words_of(case))

    @jax.jit
    def run(params, values, state):
        def total(params, values, state):
            out = apply(name, params, words.with_values(values), state)
            return (out.masked() * jnp.expand_dims(weigh(out.values[0]), 0)).sum(), out.values

        return jax.grad(total, (0, 1, 2), has_aux=True)(params, values, state)

    @jax.jit
    def run_loops(params, examples, state):
        def total(params, examples, state):
            outs = [case.loop(each, params[name], state[row]) for row, each in enumerate(examples)]
            return sum((out * weigh(out)).sum() for out in outs), outs

        return jax.grad(total, (0, 1, 2), has_aux=True)(params, examples, state)

    (of_params, of_values, of_states), outs = run(params, words.values, STATE)
    examples = words_of(case)[:-1]
    (to_params, to_values, to_states), expected = run_loops(params, examples, STATE)
    assert np.isfinite(outs).all()
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-5)
    for row, out in enumerate(expected):
        np.testing.assert_allclose(outs[row, : len(out)], out, rtol=1e-5, atol=1e-5)
        close(of_values[row, : len(out)], to_values[row])
        assert not of_values[row, len(out) :].any()
    assert not of_values[-1].any()
    close(of_states, to_states)
    jax.tree.map(close, of_params, to_params)


def test_each_example_gives_the_same_alone_at_its_own_length():
    params = {name: random_params(name) for name in CASES}

    @jax.jit
    def run(words, state):
        return {name: apply(name, params[name], words[name], state).values for name in CASES}

    together = run({name: pad(words_of(case)) for name, case in CASES.items()}, STATE)
    for row in (1, 2):
        alone = run(
            {name: pad(words_of(case)[row : row + 1]) for name, case in CASES.items()},
            STATE[row : row + 1],
        )
        for name, out in alone.items():
            assert out.shape[1] == LENGTHS[row]
            np.testing.assert_allclose(
                out[0], together[name][row, : LENGTHS[row]], rtol=1e-5, atol=1e-5, err_msg=name
            )


def formula(*shape: int, seed: int) -> np.ndarray:
    """Return numbers that any library can be given: `0.8 sin(1.7 n + seed)`."""
    numbers = np.arange(np.prod(shape))
    return 0.8 * np.sin(numbers * 1.7 + seed).reshape(shape).astype(np.float32)


def constant(value: np.ndarray) -> layers.ParamAttr:
    return layers.ParamAttr(initializer=lambda key, shape, dtype: jnp.asarray(value, dtype))


def test_lstm_without_peepholes_is_torchs():
    def program():
        words = layers.data("x", [12], lod_level=1, buckets=[4])
        w, b = formula(3, 12, seed=2), formula(1, 12, seed=3)
        return layers.dynamic_lstm(words, 12, None, None, constant(w), constant(b), False)

    hidden, cell = infer(program, {"x": list(formula(2, 4, 12, seed=1))})
    # torch 2: nn.LSTM(12, 3) with the identity as weight_ih, our w and b with their columns in the
    # order input, forget, candidate, output; the states after the last of 4 words.
    expected_hidden = [[0.077084, -0.108273, 0.053804], [0.078282, -0.119928, 0.060178]]
    expected_cell = [[0.142657, -0.229386, 0.117232], [0.143404, -0.249016, 0.133769]]
    np.testing.assert_allclose([each[-1] for each in hidden], expected_hidden, atol=2e-6)
    np.testing.assert_allclose([each[-1] for each in cell], expected_cell, atol=2e-6)


def test_gru_of_origin_mode_is_torchs_where_reset_and_product_commute():
    w = formula(3, 9, seed=5)
    w[:, 6:] = np.diag(np.diag(w[:, 6:]))  # torch resets behind the product

    def program():
        words = layers.data("x", [9], lod_level=1, buckets=[4])
        b = constant(formula(1, 9, seed=6))
        return layers.dynamic_gru(words, 3, constant(w), b, origin_mode=True)

    states = infer(program, {"x": list(formula(2, 4, 9, seed=4))})
    # torch 2: nn.GRU(9, 3) with the identity as weight_ih, columns in the order reset, update,
    # candidate, no bias_hh; the states after the last of 4 words.
    expected = [[-0.431418, -0.401262, 0.396104], [0.148271, -0.420033, 0.304181]]
    np.testing.assert_allclose([each[-1] for each in states], expected, atol=2e-6)


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

"""Programs of less than full precision: what is computed in it, and what stays float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import fluid, layers
from penstock._parameter_names import flatten
from penstock.fluid.sequence_moves import sequence_expand
from tests.layers.programs import normal
from tests.layers.test_battery import CASES


def test_bfloat16_is_the_dtype_of_what_layers_pass_on_and_not_of_the_loss():
    seen = {}

    def program():
        seen["conv"] = y = layers.conv2d(layers.data("x", [8, 8, 3]), 4, 3, padding="SAME")
        seen["norm"] = y = layers.batch_norm(y, act="relu")
        seen["depthwise"] = y = layers.depthwise_conv2d(y, 3, padding="SAME")
        seen["transpose"] = y = layers.conv2d_transpose(y, 4, filter_size=2, stride=2)
        seen["excited"] = y = layers.squeeze_excite(y, 2)
        seen["pool"] = y = layers.pool2d(y, 2, "avg", 2)
        seen["dropped"] = y = layers.drop_path(layers.dropout(y, 0.1), 0.1)
        seen["fc"] = y = layers.fc(y, 5)
        seen["layer_norm"] = y = layers.layer_norm(y)
        seen["softmax"] = probabilities = layers.softmax(y)
        label = layers.data("label", [1], "int32")
        seen["loss"] = loss = layers.mean(layers.cross_entropy(probabilities, label))
        return loss

    ps.ProgramBuilder(program, optax.adam(1e-2), precision="bfloat16", place=jax.devices()[:1])
    wide = {name: seen.pop(name).dtype for name in ("softmax", "loss")}
    assert set(wide.values()) == {jnp.dtype("float32")}
    assert {value.dtype for value in seen.values()} == {jnp.dtype("bfloat16")}


def test_bfloat16_keeps_what_a_program_feeds_to_its_loss_exact():
    def program():
        y = layers.data("y", [1])
        return layers.mean(layers.square_error_cost(y, 0 * y + 100000.5)), layers.create_parameter(
            [1], name="spare"
        ).sum()

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), precision="bfloat16")
    loss, _ = builder.test(builder.init(), {"y": [[100000.0]]})
    assert float(loss) == 0.25


def gate(x):
    """Return an image times a gate that is its bias alone."""
    zeros = layers.ParamAttr(initializer=jax.nn.initializers.zeros)
    how = {"gate_act": lambda gate: 1 + gate, "param_attr": zeros, "name": "of"}
    # The pixels of one image meet one gate, so rows become pixels.
    return layers.squeeze_excite(x.reshape(1, 256, -1, 4), 1, **how).reshape(x.shape)


def bias(x):
    """Return a row `[1, 4]` in bfloat16 that is a bias alone."""
    return layers.fc(x[:1, 0], 4, param_attr=jax.nn.initializers.zeros, name="of")


def expand(x):
    """Return words, each with its example's bias."""
    words = ps.Sequence(x.reshape(1, -1, 4), jnp.array([x.size // 4]))
    return x + sequence_expand(bias(x), words).values.reshape(x.shape)


def convolve_rows(x):
    words = ps.Sequence(x, jnp.full(x.shape[:1], 8))
    return layers.row_conv(words, 0, jax.nn.initializers.ones, name="of").values


SPREAD = {
    "fc": ("of/b", lambda x: layers.fc(x, 4, num_flatten_dims=2, name="of"), False),
    "rms_norm": ("of/scale", lambda x: layers.rms_norm(x, name="of"), True),
    "squeeze_excite": ("of/expand/b", gate, True),
    "sequence_expand": ("of/b", expand, False),
    "elementwise_add": ("of/b", lambda x: fluid.layers.elementwise_add(x, bias(x)[0]), False),
    "row_conv": ("of/w", convolve_rows, True),
    "position_embedding": ("of/w", lambda x: layers.position_embedding(x, 8, name="of"), False),
}


@pytest.mark.parametrize("layer", SPREAD)
def test_gradients_of_what_meets_every_row_are_summed_in_float32(layer):
    name, call, is_factor = SPREAD[layer]
    is_rounded = layer not in ("fc", "rms_norm", "position_embedding")

    def program():
        x, factor = layers.data("x", [8, 4]), layers.data("factor", [8, 4])
        y = call(x.astype("bfloat16"))
        return layers.mean(y.astype("float32") * factor), y

    # Of one sign, and exact in bfloat16: what is off is the sum.
    x, factor = (1 + np.abs(normal(4096, 8, 4, seed=seed)) for seed in range(2))
    factor = np.asarray(factor, jnp.bfloat16).astype(np.float32)
    builder = ps.ProgramBuilder(
        program, optax.sgd(1.0), precision="bfloat16", place=jax.devices()[:1]
    )
    state = builder.init()
    before = np.asarray(flatten(state.variables["params"])[tuple(name.split("/"))])
    state, (_, y) = builder.train(state, {"x": x, "factor": factor})
    actual = before - np.asarray(flatten(state.variables["params"])[tuple(name.split("/"))])
    terms = factor.astype(np.float64) * (np.asarray(y, np.float64) if is_factor else 1)
    sums = terms.reshape(-1, *actual.shape).mean(axis=0) / actual.size
    # What is added up for an activation is rounded to bfloat16 once.
    rtol = 2.0**-9 if is_rounded else 3e-4
    np.testing.assert_allclose(actual, sums, rtol=rtol)


@pytest.mark.parametrize("name", ["chunk_eval", "ctc_greedy_decoder", "edit_distance"])
def test_layers_of_whole_numbers_need_no_implicit_promotion(name):
    def program():
        x, y = layers.data("x", CASES[name].shape), layers.data("y", [1], "int32")
        return layers.mean(CASES[name].call(x, y))

    with jax.numpy_dtype_promotion("strict"):
        ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])

"""Programs of less than full precision: what is computed in it, and what stays float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.layers.programs import normal

SEEN = {}


def network():
    x = layers.data("x", [8, 8, 3])
    SEEN["conv"] = y = layers.conv2d(x, 4, 3, padding="SAME")
    SEEN["norm"] = y = layers.batch_norm(y, act="relu")
    SEEN["depthwise"] = y = layers.depthwise_conv2d(y, 3, padding="SAME")
    SEEN["transpose"] = y = layers.conv2d_transpose(y, 4, filter_size=2, stride=2)
    SEEN["excited"] = y = layers.squeeze_excite(y, 2)
    SEEN["pool"] = y = layers.pool2d(y, 2, "avg", 2)
    SEEN["dropped"] = y = layers.drop_path(layers.dropout(y, 0.1), 0.1)
    SEEN["fc"] = y = layers.fc(y, 5)
    SEEN["layer_norm"] = y = layers.layer_norm(y)
    return y


def train_program():
    probabilities = layers.softmax(network())
    SEEN["softmax"] = probabilities
    label = layers.data("label", [1], "int32")
    SEEN["loss"] = loss = layers.mean(layers.cross_entropy(probabilities, label))
    return loss, layers.accuracy(probabilities, label)


FEED = {"x": normal(8, 8, 8, 3), "label": np.arange(8)[:, None] % 5}
WIDE = {"softmax", "loss"}


def builder_of(precision):
    return ps.ProgramBuilder(
        train_program,
        optax.adam(1e-2),
        infer_func=network,
        precision=precision,
        place=jax.devices()[:1],
    )


def test_bfloat16_is_the_dtype_of_what_layers_pass_on_and_not_of_the_loss():
    builder_of("bfloat16")
    dtypes = {name: value.dtype for name, value in SEEN.items()}
    assert {name for name, dtype in dtypes.items() if dtype == jnp.float32} == WIDE
    assert {dtype for name, dtype in dtypes.items() if name not in WIDE} == {jnp.dtype("bfloat16")}


@pytest.mark.slow
def test_bfloat16_leaves_the_state_in_float32_and_follows_the_float32_run():
    losses = {}
    for precision in ("float32", "bfloat16"):
        builder = builder_of(precision)
        state, losses[precision] = builder.init(), []
        for _ in range(5):
            state, (loss, _) = builder.train(state, FEED)
            losses[precision].append(float(loss))
        kinds = {str(x.dtype) for x in jax.tree.leaves((state.variables, state.opt_state))}
        assert kinds <= {"float32", "int32"}
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.05)
    assert losses["bfloat16"] != losses["float32"]


def test_bfloat16_keeps_what_a_program_feeds_to_its_loss_exact():
    def program():
        y = layers.data("y", [1])
        return layers.mean(layers.square_error_cost(y, 0 * y + 100000.5)), layers.create_parameter(
            [1], name="spare"
        ).sum()

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), precision="bfloat16")
    loss, _ = builder.test(builder.init(), {"y": [[100000.0]]})
    assert float(loss) == 0.25


@pytest.mark.parametrize("layer", ["fc", "rms_norm"])
def test_gradients_of_biases_and_scales_are_summed_in_float32(layer):
    def program():
        x, factor = layers.data("x", [512, 4]), layers.data("factor", [512, 4])
        y = layers.fc(x, 4, num_flatten_dims=2, name="layer") if layer == "fc" else None
        y = layers.rms_norm(x.astype("bfloat16"), name="layer") if y is None else y
        return layers.mean(y.astype("float32") * factor), y

    # Of one sign, and exact in bfloat16: what is off is the sum.
    x = np.asarray(1 + np.abs(normal(64, 512, 4)), jnp.bfloat16).astype(np.float32)
    factor = np.asarray(1 + np.abs(normal(64, 512, 4, seed=1)), jnp.bfloat16).astype(np.float32)
    builder = ps.ProgramBuilder(
        program, optax.sgd(1.0), precision="bfloat16", place=jax.devices()[:1]
    )
    state = builder.init()
    leaf = "b" if layer == "fc" else "scale"
    before = np.asarray(state.variables["params"]["layer"][leaf])
    state, (_, y) = builder.train(state, {"x": x, "factor": factor})
    actual = before - np.asarray(state.variables["params"]["layer"][leaf])
    terms = factor.astype(np.float64) * (1 if layer == "fc" else np.asarray(y, np.float64))
    np.testing.assert_allclose(actual, terms.mean(axis=(0, 1)) / 4, rtol=3e-4)

"""Noise: its shape and distribution, and that it is the same on any number of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import penstock as ps
from penstock import layers
from tests.layers.programs import infer, normal

SIZES = (12, 12, 7)
"""Two full batches and a short one."""


def autoencoder():
    """Return a VAE's loss, its noise and a mask, with dropout of flax and ours."""
    is_training = layers.is_training()
    x = layers.data("x", shape=[6])
    mask = nn.Dropout(0.3, deterministic=not is_training)(jnp.ones([x.shape[0], 8]) + 0 * x[:, :1])
    hidden = layers.dropout(nn.relu(nn.Dense(8)(x)) * mask, 0.2)
    mean, log_variance = layers.fc(hidden, 3), layers.fc(hidden, 3)
    noise = layers.gaussian_random_batch_size_like(mean, [-1, 3])
    scale = 1 + 0.1 * layers.uniform_random([1, 3])  # one for all examples
    decoded = layers.fc(mean + jnp.exp(log_variance / 2) * noise * scale, 6)
    distance = jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), axis=1, keepdims=True)
    error = jnp.sum(layers.square_error_cost(decoded, x), axis=1, keepdims=True)
    return layers.mean(error - 0.5 * distance), noise, mask


def run(num_devices, **options):
    """Return losses, noise and masks of three steps, and the loss of a test."""
    builder = ps.ProgramBuilder(
        autoencoder, optax.adam(0.01), place=jax.devices()[:num_devices], **options
    )
    state = builder.init(seed=1)
    batches = [{"x": normal(size, 6, seed=number)} for number, size in enumerate(SIZES)]
    found = []
    for batch in batches:
        state, values = builder.train(state, batch)
        found.append([np.asarray(value) for value in values])
    return [*map(list, zip(*found, strict=True)), [builder.test(state, batches[2])[0]]]


@pytest.fixture(scope="module")
def run_on_one():
    return run(1)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [3, 8])
def test_noise_and_losses_of_an_autoencoder_agree_on_any_number_of_devices(num_devices, run_on_one):
    losses, noise, masks, tested = run(num_devices)
    np.testing.assert_allclose(losses, run_on_one[0], rtol=1e-5)
    np.testing.assert_allclose(tested, run_on_one[3], rtol=1e-5)
    for one, other in zip(noise + masks, run_on_one[1] + run_on_one[2], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("num_devices", [1, 3])
def test_a_random_key_draws_for_each_example_the_same_on_any_number_of_devices(num_devices):
    def program():
        x = layers.data("x", [2])
        keys = layers.example_keys()
        noise = jax.random.normal(layers.random_key(), x.shape)
        return noise, jax.vmap(lambda key: jax.random.normal(key, [2]))(keys)

    for noise, one in zip(
        infer(program, {"x": normal(7, 2)}, num_devices=num_devices),
        infer(program, {"x": normal(7, 2)}),
        strict=True,
    ):
        np.testing.assert_array_equal(noise, one)
        assert len(np.unique(noise)) == 14


def test_masks_of_flax_dropout_differ_between_examples_and_steps(run_on_one):
    masks = run_on_one[2]
    assert set(np.unique(masks[0])) == {np.float32(0), np.float32(1 / 0.7)}
    assert len(np.unique(masks[0], axis=0)) > 9
    assert not np.array_equal(masks[0], masks[1])
    assert len(np.unique(run_on_one[1][0])) == 36


def test_noise_has_the_shape_mean_and_deviation_it_was_given():
    def function():
        x = layers.data("x", [1])
        return {
            "rows": layers.gaussian_random_batch_size_like(x, [-1, 4000], mean=3.0, std=0.5),
            "column": layers.uniform_random_batch_size_like(
                x[None], [900, -1], "float32", 1, 1, min=2.0, max=4.0
            ).T,
            "common": 0 * x + layers.gaussian_random([1, 4000], mean=-1.0, std=2.0),
            "half": layers.uniform_random_batch_size_like(x, [-1, 2], "bfloat16"),
            "of another axis": layers.uniform_random_batch_size_like(
                jnp.ones([4, 3]), [2, -1], output_dim_idx=1, input_dim_idx=1
            ),
        }

    found = infer(function, {"x": normal(6, 1)})
    assert {name: value.shape for name, value in found.items()} == {
        "rows": (6, 4000),
        "column": (6, 900),
        "common": (6, 4000),
        "half": (6, 2),
        "of another axis": (2, 3),
    }
    for name, mean, std in [("rows", 3, 0.5), ("column", 3, 3**-0.5), ("common", -1, 2)]:
        np.testing.assert_allclose(np.mean(found[name], axis=1), mean, atol=5 * std / 30)
        np.testing.assert_allclose(np.std(found[name], axis=1), std, rtol=0.1)
    assert found["half"].dtype == jnp.bfloat16
    assert len(np.unique(found["common"], axis=0)) == 1
    assert len(np.unique(found["rows"], axis=0)) == 6

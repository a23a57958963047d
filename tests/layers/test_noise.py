"""Noise: its shape and distribution, and that it is the same on any number of devices."""

import jax
import jax.numpy as jnp
import numpy as np

from penstock import layers
from tests.layers.programs import infer, normal


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
            "normal half": layers.gaussian_random_batch_size_like(
                x, [-1, 2], std=np.float64(0.1), dtype="bfloat16"
            ),
            "of another axis": layers.uniform_random_batch_size_like(
                jnp.ones([4, 3]), [2, -1], output_dim_idx=1, input_dim_idx=1
            ),
        }

    noise = infer(function, {"x": normal(6, 1)})
    assert {name: value.shape for name, value in noise.items()} == {
        "rows": (6, 4000),
        "column": (6, 900),
        "common": (6, 4000),
        "half": (6, 2),
        "normal half": (6, 2),
        "of another axis": (2, 3),
    }
    for name, mean, std in [("rows", 3, 0.5), ("column", 3, 3**-0.5), ("common", -1, 2)]:
        np.testing.assert_allclose(np.mean(noise[name], axis=1), mean, atol=5 * std / 30)
        np.testing.assert_allclose(np.std(noise[name], axis=1), std, rtol=0.1)
    assert noise["half"].dtype == noise["normal half"].dtype == jnp.bfloat16
    assert len(np.unique(noise["common"], axis=0)) == 1
    assert len(np.unique(noise["rows"], axis=0)) == 6


def test_draws_of_a_seed_are_by_threefry_whatever_jax_draws_by():
    def function():
        def step(words, state):
            return jnp.zeros([*words.shape, 99]), state

        first = layers.data("x", [1], "int32")
        words = layers.sample_decode(step, (), first, end_id=0, max_length=4, seed=3)
        return layers.gaussian_random([1, 4], seed=3), words.values

    feed = {"x": np.array([[1], [2]])}
    expected = infer(function, feed)
    with jax.default_prng_impl("rbg"):
        jax.tree.map(np.testing.assert_array_equal, infer(function, feed), expected)

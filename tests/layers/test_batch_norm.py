"""Batch norm against numpy, against flax, and against itself without padding or devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, initial, normal, train


def program(**arguments):
    """Normalise `x`, and weigh the result by `w` so that its gradient is not 0."""

    def function():
        y = layers.batch_norm(layers.data("x", [4, 3]), **arguments)
        w = layers.create_parameter([1, 4, 3], name="w", attr=lambda *_: normal(1, 4, 3, seed=7))
        return layers.mean(jnp.tanh(y * w)), y

    return function


FEED = {"x": 3 * normal(12, 4, 3) + 5}


def standardised(x, mean, variance):
    return (x - mean) / np.sqrt(variance + 1e-5)


def test_batch_norm_trains_by_the_batch_and_tests_by_the_running_statistics():
    step = train(program(), FEED)
    mean, variance = FEED["x"].mean((0, 1)), FEED["x"].var((0, 1))
    np.testing.assert_allclose(
        step.values[1], standardised(FEED["x"], mean, variance), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(step.test_values[1], FEED["x"] / np.sqrt(1 + 1e-5), rtol=1e-5)
    statistics = step.batch_stats["batch_norm_0"]
    np.testing.assert_allclose(statistics["mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(statistics["variance"], 0.9 + 0.1 * variance, rtol=1e-5)


def test_batch_norm_has_the_gradients_of_flax():
    module = nn.BatchNorm(use_running_average=False, momentum=0.9, use_fast_variance=False)
    variables = module.init(jax.random.key(0), FEED["x"])

    def loss(params, x):
        y, _ = module.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return jnp.mean(jnp.tanh(y * normal(1, 4, 3, seed=7)))

    expected = jax.grad(loss)(variables["params"], FEED["x"])
    gradients = train(program(), FEED).gradients["batch_norm_0"]
    for leaf in ("scale", "bias"):
        np.testing.assert_allclose(gradients[leaf], expected[leaf], rtol=1e-3, atol=1e-6)


def test_batch_norm_passes_the_gradient_through_the_statistics():
    def function():
        y = layers.batch_norm(layers.fc(layers.data("x", [4, 3]), 5, num_flatten_dims=2))
        return layers.mean(y * jnp.asarray(normal(12, 4, 5)))

    def loss(w, x):
        h = x @ w
        y = (h - h.mean((0, 1), keepdims=True)) / jnp.sqrt(h.var((0, 1), keepdims=True) + 1e-5)
        return jnp.mean(y * normal(12, 4, 5))

    w = initial(function)["params"]["fc_0"]["w"]
    gradients = train(lambda: function(), FEED, variables=initial(function)).gradients
    expected = jax.grad(loss)(w, FEED["x"])
    np.testing.assert_allclose(gradients["fc_0"]["w"], expected, rtol=2e-3, atol=1e-5)

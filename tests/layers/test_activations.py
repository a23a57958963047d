"""Activations against formulas in float64."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from penstock import layers
from penstock.layers.activations import ACTIVATIONS, Activation, activate

FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.02 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "gelu": lambda x: x * sp.ndtr(x),
    "swish": lambda x: x * sp.expit(x),
    "sigmoid": sp.expit,
    "logsigmoid": sp.log_expit,
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softmax": lambda x: sp.softmax(x, axis=-1),
    "log_softmax": lambda x: sp.log_softmax(x, axis=-1),
}

X = np.linspace(-9, 9, 36).reshape(2, 3, 6)


def test_every_activation_has_a_formula_here():
    assert set(FORMULAS) == set(ACTIVATIONS) == set(get_args(Activation))


POINTS = np.array([[-7.0, -2.0, -0.3, 0.4, 2.0, 7.0]])
LARGE = np.array([[-1e4, -90.0, 0.0, 90.0, 1e4]], np.float32)


@functools.cache
def measured():
    """Return what all activations give, by function and by name, and their derivatives."""

    def measure(name, x, points, large):
        function = getattr(layers, name)
        y, back = jax.vjp(function, large)
        values = function(x), activate(x, name, "fc")
        return values, jax.jacobian(function)(points)[0, :, 0], (y, *back(jnp.ones_like(y)))

    def run(*arrays):
        return {name: measure(name, *arrays) for name in FORMULAS}

    return jax.jit(run)(*(jnp.asarray(x, jnp.float32) for x in (X, POINTS, LARGE)))


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_equals_its_formula_has_its_gradient_and_is_finite(name):
    formula, (values, jacobian, of_large) = FORMULAS[name], measured()[name]
    for value in values:
        np.testing.assert_allclose(value, formula(X), rtol=1e-5, atol=1e-6)
    steps = 1e-6 * np.eye(6)
    rows = [(formula(POINTS + d) - formula(POINTS - d))[0] / 2e-6 for d in steps]
    np.testing.assert_allclose(jacobian, np.stack(rows, 1), atol=1e-4)
    assert all(np.isfinite(array).all() for array in of_large)


def test_activation_arguments_change_what_they_say():
    x = jnp.asarray([[-2.0, 8.0]])
    assert layers.relu6(x, threshold=7.0).tolist() == [[0, 7]]
    assert layers.leaky_relu(x, alpha=0.5).tolist() == [[-1, 8]]
    np.testing.assert_allclose(layers.elu(x, alpha=2.0)[0, 0], 2 * np.expm1(-2), rtol=1e-6)
    np.testing.assert_allclose(layers.swish(x, beta=2.0)[0, 0], -2 * sp.expit(-4), rtol=1e-6)
    np.testing.assert_allclose(
        layers.gelu(x, approximate=True), jax.nn.gelu(x, approximate=True), rtol=1e-6
    )
    np.testing.assert_allclose(layers.softmax(X, axis=1), sp.softmax(X, axis=1), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_log_softmax_of_half_precision_is_computed_in_float32(dtype):
    x = jnp.asarray(np.linspace(-9, 9, 1000).reshape(2, 500), dtype)
    expected = sp.log_softmax(np.asarray(x, np.float64), axis=-1)
    for y in (layers.log_softmax(x), activate(x, "log_softmax", "fc")):
        np.testing.assert_allclose(y, expected, rtol=1e-5)

"""Activations against formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from penstock import layers
from penstock._errors import ProgramError
from penstock.layers.activations import ACTIVATIONS, activate

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
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_equals_its_formula_by_function_and_by_name(name):
    x = jnp.asarray(X, jnp.float32)
    expected = FORMULAS[name](X)
    np.testing.assert_allclose(getattr(layers, name)(x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(activate(x, name, "fc"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.quick("relu]", "gelu", "softplus", "softmax")
@pytest.mark.parametrize("name", FORMULAS)
def test_activation_has_the_gradient_of_its_formula(name):
    x = np.array([[-7.0, -2.0, -0.3, 0.4, 2.0, 7.0]])
    actual = jax.jacobian(getattr(layers, name))(jnp.asarray(x, jnp.float32))[0, :, 0]
    step = 1e-6 * np.eye(6)
    rows = [(FORMULAS[name](x + d) - FORMULAS[name](x - d))[0] / 2e-6 for d in step]
    np.testing.assert_allclose(actual, np.stack(rows, 1), atol=1e-4)


@pytest.mark.quick("relu]", "gelu", "softplus", "softmax")
@pytest.mark.parametrize("name", FORMULAS)
def test_activation_of_large_numbers_and_its_gradient_are_finite(name):
    x = jnp.asarray([[-1e4, -90.0, 0.0, 90.0, 1e4]])
    y, back = jax.vjp(getattr(layers, name), x)
    assert np.isfinite(y).all()
    assert np.isfinite(back(jnp.ones_like(y))[0]).all()


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


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("rleu", r"layers.fc got act='rleu', expected None or one of 'relu', .* mean 'relu'\?"),
        (jax.nn.relu, r"layers.fc got act=.*Apply any other function to what the layer returns"),
    ],
)
def test_activation_that_is_unknown_names_the_nearest(act, message):
    with pytest.raises(ProgramError, match=message):
        activate(jnp.zeros([1, 1]), act, "fc")

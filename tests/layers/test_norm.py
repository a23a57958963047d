"""Normalisation within one example against flax and numpy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, initial, normal

X = 2 * normal(3, 4, 6) + 1


def with_random_parameters(function):
    """Return initial variables with scale and bias drawn at random."""
    variables = initial(function)
    leaves, structure = jax.tree.flatten(variables["params"])
    random = [normal(*leaf.shape, seed=i) for i, leaf in enumerate(leaves)]
    return {**variables, "params": jax.tree.unflatten(structure, random)}


def test_layer_norm_of_the_last_axis_equals_flax():
    def function():
        return layers.layer_norm(layers.data("x", [4, 6]), begin_norm_axis=-1)

    variables = with_random_parameters(function)
    module = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)
    expected = module.apply({"params": variables["params"]["layer_norm_0"]}, X)
    np.testing.assert_allclose(infer(function, {"x": X}, variables), expected, atol=1e-5)


def test_layer_norm_by_default_normalises_the_whole_example():
    def function():
        return layers.layer_norm(layers.data("x", [4, 6]), epsilon=0.1)

    variables = with_random_parameters(function)
    params = variables["params"]["layer_norm_0"]
    assert params["scale"].shape == params["bias"].shape == (24,)
    flat = X.reshape(3, 24)
    expected = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 0.1)
    expected = (expected * params["scale"] + params["bias"]).reshape(X.shape)
    np.testing.assert_allclose(infer(function, {"x": X}, variables), expected, atol=1e-5)


def test_layer_norm_without_scale_and_shift_has_no_parameters():
    def function():
        return layers.layer_norm(layers.data("x", [4]), scale=False, shift=False, act="relu")

    assert not initial(function)["params"]
    assert infer(function, {"x": [[1.0, 1.0, 3.0, 3.0]]}).round(3).tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("axis", [0, 3, -3])
def test_layer_norm_of_an_axis_that_is_none_says_which_there_are(axis):
    with pytest.raises(ProgramError, match=f"begin_norm_axis={axis} and .* from 1 to 2"):
        initial(lambda: layers.layer_norm(layers.data("x", [4, 6]), begin_norm_axis=axis))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_equals_flax(groups):
    image = 2 * normal(3, 5, 4, 6) + 1

    def function():
        return layers.group_norm(layers.data("x", [5, 4, 6]), groups)

    variables = with_random_parameters(function)
    module = nn.GroupNorm(num_groups=groups, epsilon=1e-5, use_fast_variance=False)
    expected = module.apply({"params": variables["params"]["group_norm_0"]}, image)
    np.testing.assert_allclose(infer(function, {"x": image}, variables), expected, atol=1e-5)

    def first():
        return layers.group_norm(layers.data("x", [6, 5, 4]), groups, data_format="NCHW")

    actual = infer(first, {"x": image.transpose(0, 3, 1, 2)}, variables)
    np.testing.assert_allclose(actual.transpose(0, 2, 3, 1), expected, atol=1e-5)


def test_group_norm_with_groups_that_do_not_divide_says_so():
    with pytest.raises(ProgramError, match=r"groups=4 and .* \[B, 6\], expected a divisor"):
        initial(lambda: layers.group_norm(layers.data("x", [6]), 4))


def test_norms_of_half_precision_compute_their_statistics_in_float32():
    x = jnp.asarray(1000 + normal(2, 64), jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)

    def function():
        image = layers.data("x", [64], dtype="bfloat16")
        return layers.layer_norm(image, scale=False, shift=False)

    actual = infer(function, {"x": x})
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0.01, atol=1e-2)


def test_l2_normalize_gives_rows_of_length_one():
    y = layers.l2_normalize(X, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(y, X / np.linalg.norm(X, axis=-1, keepdims=True), rtol=1e-5)


def test_l2_normalize_of_zeros_is_zero_with_a_finite_gradient():
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(layers.l2_normalize(x, 1)))(
        jnp.zeros([2, 3])
    )
    assert value == 0
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_lrn_equals_its_definition(data_format):
    x = normal(2, 3, 3, 7)
    expected = np.empty_like(x)
    for channel in range(7):
        window = x[..., max(channel - 2, 0) : channel + 3]
        expected[..., channel] = x[..., channel] / (2 + 0.3 * (window**2).sum(-1)) ** 0.75
    given = x if data_format == "NHWC" else x.transpose(0, 3, 1, 2)
    actual = layers.lrn(jnp.asarray(given), 5, 2.0, 0.3, 0.75, data_format=data_format)
    actual = actual if data_format == "NHWC" else actual.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_lrn_of_an_even_window_says_that_it_has_two_sides():
    with pytest.raises(ProgramError, match=r"layers.lrn got n=4, expected an odd positive number"):
        layers.lrn(jnp.ones([1, 2, 2, 3]), 4)

"""Normalisation within one example against flax and numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from penstock import layers
from tests.layers.programs import infer, normal, train

X = 2 * normal(3, 4, 6) + 1


def test_layer_norm_of_words_learns_nothing_from_padding_that_no_sum_holds():
    def function():
        words = layers.data("x", [4], lod_level=1)
        words = words.with_values(words.masked(float(np.finfo(np.float32).max)))
        return layers.mean(layers.layer_norm(words, name="norm"))

    step = train(function, {"x": [normal(3, 4)]})
    assert np.isfinite(step.gradients["norm"]["scale"]).all()


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


def test_l2_normalize_of_zeros_is_zero_with_a_finite_gradient():
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(layers.l2_normalize(x, 1)))(
        jnp.zeros([2, 3])
    )
    assert value == 0
    assert np.isfinite(gradient).all()


def test_norms_of_integers_are_not_cut_to_integers():
    def program():
        image = layers.data("x", shape=[6], dtype="uint8")
        return layers.layer_norm(image), layers.l2_normalize(image, axis=1)

    normalised, unit = infer(program, {"x": np.arange(12, dtype=np.uint8).reshape(2, 6)})
    assert normalised.dtype == unit.dtype == np.float32
    np.testing.assert_allclose(normalised.std(axis=1), 1, rtol=1e-3)

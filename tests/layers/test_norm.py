"""Normalisation within one example against flax and numpy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from penstock import layers
from tests.layers.programs import check, infer, initial, normal, train

X = 2 * normal(3, 4, 6) + 1


def test_layer_norm_of_the_last_axis_equals_flax():
    module = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)
    check(
        lambda: layers.layer_norm(layers.data("x", [4, 6]), begin_norm_axis=-1),
        {"x": X},
        lambda p: module.apply({"params": p}, X),
    )


def test_layer_norm_by_default_normalises_the_whole_example():
    def expect(p):
        flat = X.reshape(3, 24)
        centred = flat - flat.mean(1, keepdims=True)
        normed = centred / np.sqrt(flat.var(1, keepdims=True) + 0.1)
        return (normed * p["scale"] + p["bias"]).reshape(X.shape)

    check(lambda: layers.layer_norm(layers.data("x", [4, 6]), epsilon=0.1), {"x": X}, expect)


def test_layer_norm_of_words_learns_nothing_from_padding_that_no_sum_holds():
    def function():
        words = layers.data("x", [4], lod_level=1)
        words = words.with_values(words.masked(float(np.finfo(np.float32).max)))
        return layers.mean(layers.layer_norm(words, name="norm"))

    step = train(function, {"x": [normal(3, 4)]})
    assert np.isfinite(step.gradients["norm"]["scale"]).all()


def test_layer_norm_without_scale_and_shift_has_no_parameters():
    def function():
        return layers.layer_norm(layers.data("x", [4]), scale=False, shift=False, act="relu")

    assert not initial(function)["params"]
    assert infer(function, {"x": [[1.0, 1.0, 3.0, 3.0]]}).round(3).tolist() == [[0, 0, 1, 1]]


def test_group_norm_equals_flax():
    image = 2 * normal(3, 5, 4, 6) + 1

    def program():
        x = layers.data("x", [5, 4, 6])
        return {str(n): layers.group_norm(x, n, name=str(n)) for n in (1, 2, 6)}

    def expect(p):
        return {
            n: nn.GroupNorm(num_groups=int(n), epsilon=1e-5, use_fast_variance=False).apply(
                {"params": p[n]}, image
            )
            for n in p
        }

    check(program, {"x": image}, expect)


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


def test_lrn_equals_its_definition():
    x = normal(2, 3, 3, 7)
    expected = np.empty_like(x)
    for channel in range(7):
        window = x[..., max(channel - 2, 0) : channel + 3]
        expected[..., channel] = x[..., channel] / (2 + 0.3 * (window**2).sum(-1)) ** 0.75
    np.testing.assert_allclose(layers.lrn(jnp.asarray(x), 5, 2.0, 0.3, 0.75), expected, rtol=1e-5)


def test_norms_of_integers_are_not_cut_to_integers():
    def program():
        image = layers.data("x", shape=[6], dtype="uint8")
        return layers.layer_norm(image), layers.l2_normalize(image, axis=1)

    normalised, unit = infer(program, {"x": np.arange(12, dtype=np.uint8).reshape(2, 6)})
    assert normalised.dtype == unit.dtype == np.float32
    np.testing.assert_allclose(normalised.std(axis=1), 1, rtol=1e-3)

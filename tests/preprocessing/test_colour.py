"""Colour operations, where the way there is shorter than TensorFlow's."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import preprocessing
from tests.preprocessing.goldens import GOLDENS

COLOURS = np.random.default_rng(0).uniform(size=(6, 8, 3)).astype(np.float32)
COLOURS[0, :4] = COLOURS[0, :4, :1]  # gray
COLOURS[1, :3] = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
COLOURS[2, 0] = 0


def through_hsv(image: np.ndarray, turn: float, factor: float) -> np.ndarray:
    """Return the image with its hue turned and its saturation scaled, by Python's own HSV."""
    result = np.empty_like(image)
    for at in np.ndindex(image.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, image[at]))
        result[at] = colorsys.hsv_to_rgb((hue + turn) % 1, min(saturation * factor, 1), value)
    return result


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.5, 4.0])
def test_saturation_is_that_of_hsv(factor):
    actual = preprocessing.adjust_saturation(jnp.asarray(COLOURS), jnp.asarray(factor))
    np.testing.assert_allclose(actual, through_hsv(COLOURS, 0, factor), atol=1e-6)


@pytest.mark.parametrize("delta", [-0.7, -0.2, 0.0, 0.13, 0.5, 1.0])
def test_hue_is_that_of_hsv(delta):
    actual = preprocessing.adjust_hue(jnp.asarray(COLOURS), jnp.asarray(delta))
    np.testing.assert_allclose(actual, through_hsv(COLOURS, delta, 1), atol=2e-6)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_values_inside_and_outside_the_range_are_tensorflows(name):
    adjust = getattr(preprocessing, f"adjust_{name}")
    images, amounts = jnp.asarray(GOLDENS["colour_images"]), GOLDENS[f"amounts_{name}"]
    actual = [adjust(*pair) for pair in zip(images, amounts, strict=True)]
    np.testing.assert_allclose(actual, GOLDENS[f"colour_{name}"], rtol=0, atol=3e-6)


def test_contrast_keeps_the_mean_of_each_channel():
    image = jnp.asarray(COLOURS)
    actual = preprocessing.adjust_contrast(image, jnp.asarray(0.3))
    np.testing.assert_allclose(actual.mean((0, 1)), image.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(actual.std((0, 1)), 0.3 * image.std((0, 1)), rtol=1e-5)


def test_standardised_image_has_mean_0_and_deviation_1_unless_it_is_constant():
    actual = preprocessing.standardize(jnp.asarray(COLOURS) * 255)
    assert float(actual.mean()) == pytest.approx(0, abs=1e-6)
    assert float(actual.std()) == pytest.approx(1, rel=1e-5)
    assert np.unique(preprocessing.standardize(jnp.full((4, 4, 3), 7.0))).tolist() == [0]
    # 47 zeros and a 1: its deviation of 0.143 is below 1 / sqrt(48), which is what divides.
    nearly = jnp.zeros((4, 4, 3)).at[0, 0, 0].set(1)
    spread = preprocessing.standardize(nearly)
    assert float(spread.max() - spread.min()) == pytest.approx(48**0.5, rel=1e-5)


def test_flip_mirrors_left_and_right_where_asked():
    images = jnp.asarray(np.stack([COLOURS, COLOURS]))
    actual = jax.vmap(preprocessing.flip)(images, jnp.array([True, False]))
    np.testing.assert_array_equal(actual[0], COLOURS[:, ::-1])
    np.testing.assert_array_equal(actual[1], COLOURS)

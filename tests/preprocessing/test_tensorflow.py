"""Crops, resizing and colours against TensorFlow, on the same random numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from penstock import preprocessing
from penstock.preprocessing.crops import sample_box
from penstock.preprocessing.resizing import METHODS
from tests.preprocessing.philox import as_generator
from tests.readers.case import require

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tf():
    return require("tensorflow")


@pytest.fixture(scope="module")
def specification(tf):
    from tests.preprocessing import specification

    return specification


OPTIONS = [
    {},
    {"min_object_covered": 0.0},
    {"area_range": (0.9, 1.0), "aspect_ratio_range": (0.75, 1.33)},
    {"aspect_ratio_range": (2.0, 2.1), "max_attempts": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_crops_on_tensorflows_random_numbers(tf, options):
    chosen = {
        "aspect_ratio_range": (0.75, 1.33),
        "area_range": (0.05, 1.0),
        "min_object_covered": 0.1,
        "max_attempts": 100,
        **options,
    }
    random = np.random.default_rng(0)
    for seed in range(150):
        height, width = map(int, random.integers(1, (600, 600) if seed % 2 else (20, 20)))
        begin, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
            image_size=[height, width, 3],
            bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
            seed=[seed, 5 * seed + 1],
            use_image_if_no_bounding_boxes=True,
            **chosen,
        )
        box = sample_box(as_generator((seed, 5 * seed + 1)), height, width, **chosen)
        assert list(box) == [*map(int, begin[:2]), *map(int, size[:2])], (height, width, seed)


@pytest.mark.parametrize("method", METHODS)
def test_resizing_between_any_sizes(specification, method):
    random, number = np.random.default_rng(0), METHODS.index(method)
    for _ in range(60):
        height, width, rows, columns = map(int, random.integers(1, 80, 4))
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        expected = specification.resized(image.astype(np.float32), rows, columns, number).numpy()
        actual = preprocessing.resize(image, rows, columns, method=method)
        atol = {"bilinear": 4e-5, "nearest": 0, "bicubic": 3e-4, "area": 5e-3}[method]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("brightness", -1, 1), ("contrast", 0.2, 1.8), ("saturation", 0, 2.5), ("hue", -0.9, 0.9)],
)
def test_colour_operation_of_values_inside_and_outside_the_range(tf, name, low, high):
    random = np.random.default_rng(0)
    for number in range(60):
        image = random.uniform(-0.3, 1.4, (7, 9, 3)).astype(np.float32)
        if number % 3 == 0:
            image = np.round(image, 1)  # equal channels
        amount = np.float32(random.uniform(low, high))
        expected = getattr(tf.image, f"adjust_{name}")(image, amount).numpy()
        actual = getattr(preprocessing, f"adjust_{name}")(jnp.asarray(image), amount)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-6)

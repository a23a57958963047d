"""Host and device together, on the draws with which TensorFlow made the goldens."""

import numpy as np
import pytest

from penstock.preprocessing import Cifarnet, Inception, Lenet, Preprocessing, Vgg
from penstock.preprocessing.cifarnet import CifarnetDraws
from penstock.preprocessing.inception import InceptionDraws
from tests.preprocessing.goldens import GOLDENS, IMAGE, evaluated, finished
from tests.preprocessing.philox import as_generator

# Of -1 to 1: float32 after a resize, four operations and a mean. An area's weights are TensorFlow's
# but for the rounding of its positions (see test_resizing).
ATOL, AREA_ATOL = 4e-6, 6e-5


def hosted(preprocessing: Preprocessing, height: int, width: int, seed: tuple[int, int]):
    """Return the host part of the image in training."""
    random = as_generator(seed)
    return preprocessing.host(IMAGE, height, width, is_training=True, random=random)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("mode", ["fast", "full"])
def test_inception_in_training_is_the_specification(mode, number):
    inception = Inception(fast_mode=mode == "fast")
    image = hosted(inception, 8, 8, (int(GOLDENS["inception_seeds"][number]), 0))
    row = GOLDENS["inception_draws"][number]
    drawn = InceptionDraws(*row)
    draws = drawn._replace(is_flipped=row[0] > 0, order=row[5].astype(int))
    expected = GOLDENS[f"inception_{mode}_{number}"]
    atol = AREA_ATOL if (mode, number) == ("full", 3) else ATOL
    np.testing.assert_allclose(finished(inception, image, draws), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("number", range(2))
def test_vgg_in_training_is_the_specification(number):
    vgg = Vgg(resize_side_min=16, resize_side_max=32)
    image = hosted(vgg, 8, 6, (number, 1))
    actual = finished(vgg, image, np.bool_(number == 1))
    np.testing.assert_allclose(actual, GOLDENS[f"vgg_{number}"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("number", range(2))
def test_cifarnet_in_training_is_the_specification(number):
    image = hosted(Cifarnet(), 8, 8, (number, 2))
    row = GOLDENS["cifarnet_draws"][number]
    actual = finished(Cifarnet(), image, CifarnetDraws(row[0] > 0, *row[1:]))
    np.testing.assert_allclose(actual, GOLDENS[f"cifarnet_{number}"], rtol=0, atol=ATOL)


@pytest.mark.parametrize(
    ("preprocessing", "golden"),
    [
        (Inception(), "inception_evaluation"),
        (Vgg(resize_side_min=16), "vgg_evaluation"),
        (Cifarnet(), "cifarnet_evaluation"),
        (Lenet(), "lenet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_evaluation_is_the_specification(preprocessing, golden):
    expected = GOLDENS[golden]
    image = preprocessing.host(IMAGE, expected.shape[0], expected.shape[1], is_training=False)
    actual = evaluated(preprocessing, image[np.newaxis])[0]
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 if "vgg" in golden else ATOL)


def test_lenet_in_training_is_lenet_in_evaluation():
    image = hosted(Lenet(), 6, 20, (0, 0))
    np.testing.assert_allclose(finished(Lenet(), image, None), GOLDENS["lenet"], atol=ATOL)

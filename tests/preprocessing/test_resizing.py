"""Resizing by TF1's rules."""

import re

import numpy as np
import pytest

from penstock._errors import UnknownNameError
from penstock.preprocessing import Box, PreprocessingError, resize
from penstock.preprocessing.resizing import METHODS
from tests.preprocessing.goldens import GOLDENS, IMAGE, photo

# TensorFlow's weights of an area do not sum to 1: they are differences of float32 positions.
ATOL = {"bilinear": 4e-5, "nearest": 0, "bicubic": 3e-4, "area": 5e-3}


def test_ramp_is_sampled_without_the_half_pixel():
    ramp = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    expected = [[0, 4 / 3, 8 / 3], [16 / 3, 20 / 3, 8], [32 / 3, 12, 40 / 3]]
    np.testing.assert_allclose(resize(ramp, 3, 3)[..., 0], expected, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["smaller", "larger", "wider", "higher"])
def test_every_method_gives_tensorflows_values(method, way):
    expected = GOLDENS[f"resize_{way}_{METHODS.index(method)}"]
    actual = resize(IMAGE[..., :1], *expected.shape[:2], method=method)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ATOL[method])


@pytest.mark.parametrize("method", METHODS)
def test_window_is_a_part_of_the_whole(method):
    image, window = photo(60, 45), Box(7, 3, 20, 11)
    whole = resize(image, 41, 70, method=method)
    part = resize(image, 41, 70, method=method, window=window)
    # Not bit for bit: a window may need fewer taps of an area.
    np.testing.assert_allclose(part, window.of(whole), rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(1, 1), (5, 9), (13, 17), (40, 31)])
def test_constant_image_stays_constant(method, size):
    image = np.full((13, 17, 2), 201, np.uint8)
    assert np.unique(resize(image, *size, method=method)).tolist() == [201]


@pytest.mark.parametrize("method", METHODS)
def test_same_size_gives_the_same_values(method):
    np.testing.assert_allclose(resize(IMAGE, 13, 17, method=method), IMAGE, atol=2e-3)


def test_bicubic_may_leave_the_range():
    edge = np.repeat(np.array([[[0], [255]]], np.uint8), 4, axis=1).reshape(1, 8, 1)
    values = resize(edge, 1, 24, method="bicubic")
    assert values.min() < -1
    assert values.max() > 256


@pytest.mark.parametrize(
    ("image", "size"), [(np.ones((4, 4)), (2, 2)), (np.ones((0, 4, 3)), (2, 2)), (IMAGE, (0, 2))]
)
def test_what_has_no_pixels_is_refused(image, size):
    text = f"resize got an array of shape {list(image.shape)}, the size {size[0]} x {size[1]}"
    with pytest.raises(PreprocessingError, match=re.escape(f"{text}, expected [H, W, C] with")):
        resize(image, *size)


def test_unknown_method_names_the_nearest():
    with pytest.raises(
        UnknownNameError, match=r"resize got 'cubic', expected one of .*'bicubic'\?"
    ):
        resize(IMAGE, 2, 2, method="cubic")  # type: ignore[arg-type]

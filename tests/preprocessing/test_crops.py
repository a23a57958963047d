"""Crops: TensorFlow's sampler, centres, padding."""

import numpy as np
import pytest

from penstock.preprocessing import central_box, crop_or_pad, pad, random_box, sample_box
from tests.preprocessing.goldens import GOLDENS
from tests.preprocessing.philox import as_generator


def test_tensorflows_random_numbers_give_tensorflows_crops():
    options = GOLDENS["box_options"].tolist()
    for seed, (row, drawn) in enumerate(zip(options, GOLDENS["boxes"].tolist(), strict=True)):
        box = sample_box(
            as_generator((seed, 3)),
            *drawn[:2],
            aspect_ratio_range=(row[0], row[1]),
            area_range=(row[2], row[3]),
            min_object_covered=row[4],
            max_attempts=int(row[5]),
        )
        assert list(box) == drawn[2:], seed


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (32, 32), (9, 7)])
def test_crops_keep_to_their_ranges_and_fill_them(size):
    random = np.random.default_rng(0)
    height, width = size
    boxes = [sample_box(random, height, width, area_range=(0.3, 0.8)) for _ in range(2000)]
    rows, columns = np.array([box.height for box in boxes]), np.array([box.width for box in boxes])
    share, ratio = rows * columns / (height * width), columns / rows
    assert share.min() >= 0.3
    assert share.max() <= 0.8
    assert (np.rint(rows * 0.75) <= columns).all()
    assert (columns <= np.rint(rows * 1.33)).all()
    assert all(0 <= box.top <= height - box.height for box in boxes)
    assert all(0 <= box.left <= width - box.width for box in boxes)
    if height > 100:
        assert (share.min(), share.max()) == pytest.approx((0.3, 0.8), abs=0.01)
        assert (ratio.min(), ratio.max()) == pytest.approx((0.75, 1.33), abs=0.01)
        # As TensorFlow's, no crop touches the last row unless it has all of them.
        assert max(box.top + box.height for box in boxes if box.height < height) == height - 1


def test_object_that_must_be_covered_bounds_the_area_from_below():
    random = np.random.default_rng(0)
    boxes = [sample_box(random, 375, 500) for _ in range(2000)]
    shares = [box.height * box.width / (375 * 500) for box in boxes]
    assert 0.1 <= min(shares) < 0.11
    free = [sample_box(random, 375, 500, min_object_covered=0) for _ in range(2000)]
    assert 0.05 <= min(box.height * box.width / (375 * 500) for box in free) < 0.06


def test_whole_image_is_taken_when_no_attempt_succeeds():
    random = np.random.default_rng(0)
    # 10 x 100: nothing of at least 0.95 of its area is nearly square.
    assert sample_box(random, 10, 100, area_range=(0.95, 1.0)) == (0, 0, 10, 100)


@pytest.mark.parametrize(
    ("size", "kept"), [(299, 263), (224, 196), (300, 264), (375, 329), (32, 28), (1, 1)]
)
def test_centre_has_the_size_tensorflow_gives_it(size, kept):
    box = central_box(size, 224, 0.875)
    assert (box.top, box.height) == ((size - kept) // 2, kept)
    assert (box.left, box.width) == (14, 196)


def test_crop_or_pad_does_each_axis_by_itself():
    image = np.arange(1, 6, dtype=np.uint8)[:, None, None] * np.ones((5, 3, 1), np.uint8)
    result = crop_or_pad(image, 2, 6)[..., 0]
    assert result.tolist() == [[0, 2, 2, 2, 0, 0], [0, 3, 3, 3, 0, 0]]
    np.testing.assert_array_equal(crop_or_pad(image, 5, 3), image)


def test_padding_is_zeros_on_every_side():
    padded = pad(np.ones((2, 3, 1), np.uint8), 4)
    assert padded.shape == (10, 11, 1)
    assert padded.sum() == padded[4:6, 4:7].sum() == 6


def test_random_place_reaches_every_corner_as_often():
    random = np.random.default_rng(0)
    places = [random_box(random, 5, 4, 3, 3)[:2] for _ in range(600)]
    counts = {place: places.count(place) for place in set(places)}
    assert sorted(counts) == [(top, left) for top in range(3) for left in range(2)]
    assert min(counts.values()) > 60

"""torchvision's preprocessing: Pillow's resizing to the last bit, its crops, mean and deviation."""

import numpy as np
import pytest
from PIL import Image

from penstock import preprocessing
from penstock._errors import UnknownNameError
from penstock.preprocessing import Box, PreprocessingError, Torchvision, resize_antialiased
from tests.preprocessing.goldens import evaluated, photo

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resized_by_pillow(image, height, width, method):
    """Resize columns, then rows, as Pillow did until its 13th version chose the cheaper order."""
    columns = Image.fromarray(image).resize((width, image.shape[0]), FILTERS[method])
    return np.asarray(columns.resize((width, height), FILTERS[method]))


def prepared_by_torchvision(image, size, resize_side):
    """Return `Resize(resize_side)`, `CenterCrop(size)`, `ToTensor` and `Normalize`, by Pillow."""
    height, width = image.shape[:2]
    short, long = sorted((height, width))
    other = int(resize_side * long / short)
    rows, columns = (resize_side, other) if height <= width else (other, resize_side)
    whole = resized_by_pillow(image, rows, columns, "bilinear")
    top, left = round((rows - size) / 2.0), round((columns - size) / 2.0)
    part = whole[top : top + size, left : left + size].astype(np.float64) / 255
    return (part - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]


@pytest.mark.parametrize("method", FILTERS)
def test_resizing_is_pillows_to_the_last_bit(method):
    random = np.random.default_rng(0)
    sizes = [(1, 1, 5, 3), (7, 9, 7, 9), (480, 640, 256, 341), (333, 250, 341, 256), (9, 7, 90, 1)]
    sizes += [tuple(random.integers(1, 300, 4)) for _ in range(20)]
    for rows, columns, height, width in sizes:
        image = random.integers(0, 256, (rows, columns, 3), dtype=np.uint8)
        expected = resized_by_pillow(image, int(height), int(width), method)
        np.testing.assert_array_equal(
            resize_antialiased(image, int(height), int(width), method=method), expected
        )


def test_window_is_that_part_of_the_whole():
    image = photo(70, 50)
    whole = resize_antialiased(image, 40, 30, method="bicubic")
    part = resize_antialiased(image, 40, 30, method="bicubic", window=Box(3, 5, 20, 10))
    np.testing.assert_array_equal(part, whole[3:23, 5:15])


def test_wrong_images_and_methods_are_refused():
    with pytest.raises(PreprocessingError, match=r"resize_antialiased got .* shape \[4, 4\]"):
        resize_antialiased(np.zeros((4, 4)), 2, 2)
    with pytest.raises(PreprocessingError, match="'float64', expected 'uint8'"):
        resize_antialiased(np.zeros((4, 4, 3)), 2, 2)
    with pytest.raises(UnknownNameError, match="Did you mean 'bicubic'"):
        resize_antialiased(np.zeros((4, 4, 3), np.uint8), 2, 2, method="bicubik")  # pyright: ignore[reportArgumentType]
    with pytest.raises(PreprocessingError, match=r"deviations=\(0, 1, 1\), crop_fraction=2"):
        Torchvision(deviations=(0, 1, 1), crop_fraction=2)


@pytest.mark.parametrize(("name", "side"), [("torchvision", 256), ("torchvision_v2", 232)])
@pytest.mark.parametrize("size", [(375, 500), (500, 333), (60, 61), (256, 256)])
def test_evaluation_is_torchvisions(name, side, size):
    prep = preprocessing.get(name)
    image = photo(*size)
    host = prep.host(image, 224, 224, is_training=False)
    assert host.dtype == np.uint8
    expected = prepared_by_torchvision(image, 224, side)
    np.testing.assert_allclose(evaluated(prep, host[np.newaxis])[0], expected, atol=1e-6)


def test_training_crops_have_torchvisions_areas_and_shapes():
    image = photo(375, 500)
    prep, random = Torchvision(), np.random.default_rng(0)
    boxes = [prep._draw_box(random, *image.shape[:2]) for _ in range(2000)]
    areas = np.array([box.height * box.width for box in boxes]) / (375 * 500)
    ratios = np.array([box.width / box.height for box in boxes])
    assert areas.min() > 0.079
    assert areas.max() <= 1
    assert 0.74 < ratios.min() < 0.76 < 1.31 < ratios.max() < 1.35
    assert all(box.top + box.height <= 375 and box.left + box.width <= 500 for box in boxes)
    narrow = prep._draw_box(random, 400, 3)
    assert narrow == Box(198, 0, 4, 3)


def test_description_gives_the_same_back():
    for prep in [
        Torchvision(),
        Torchvision(crop_fraction=0.95, interpolation="bicubic", means=(0.5, 0.5, 0.5)),
        preprocessing.get("torchvision_v2"),
        preprocessing.Vgg(resize_side_min=341),
        preprocessing.Lenet(dtype="float32"),
    ]:
        description = preprocessing.describe(prep)
        assert preprocessing.restore(description) == prep
    assert preprocessing.describe(Torchvision(crop_fraction=0.965))["name"] == "torchvision_v2"


def test_descriptions_that_are_none_are_refused():
    for wrong in (
        {},
        {"name": "vgg", "options": {"side": 3}},
        {"name": "vgg", "options": 3},
        "vgg",
    ):
        with pytest.raises(PreprocessingError, match=r"preprocessing\.restore got"):
            preprocessing.restore(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownNameError, match="Did you mean 'torchvision'"):
        preprocessing.restore({"name": "torchvison"})

    class Own(preprocessing.Lenet):
        pass

    with pytest.raises(PreprocessingError, match=r"preprocessing\.describe got .*Own"):
        preprocessing.describe(Own())

"""Which part of an image is kept: TensorFlow's crop sampler, central crops, crop or pad."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_f32 = np.float32


class Box(NamedTuple):
    """A rectangle in an image, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, image: np.ndarray) -> np.ndarray:
        """Return the part of `image` `[H, W, C]`, a view.

        >>> Box(1, 0, 2, 3).of(np.zeros((4, 4, 1))).shape
        (2, 3, 1)
        """
        return image[self.top : self.top + self.height, self.left : self.left + self.width]


def sample_box(
    random: np.random.Generator,
    height: int,
    width: int,
    *,
    aspect_ratio_range: tuple[float, float] = (0.75, 1.33),
    area_range: tuple[float, float] = (0.05, 1.0),
    min_object_covered: float = 0.1,
    max_attempts: int = 100,
) -> Box:
    """Draw a crop as TensorFlow's `sample_distorted_bounding_box` does around the whole image.

    An attempt draws the aspect ratio, then the height, then the position. It succeeds if the
    crop's area is in range. Since the object is the whole image, `min_object_covered` is a second
    lower bound on the area: with the defaults a crop covers at least a tenth of the image. After
    `max_attempts` failures the whole image is taken.

    Arguments:
      random: a numpy generator.
      height: height of the image in pixels.
      width: width of the image in pixels.
      aspect_ratio_range: range of the crop's width / height.
      area_range: range of the crop's area, as a fraction of the image's.
      min_object_covered: the smallest fraction of the image that a crop covers.
      max_attempts: number of attempts.

    >>> sample_box(np.random.default_rng(0), 375, 500)
    Box(top=37, left=72, height=237, width=265)
    """
    # In float32, as TensorFlow's kernel: fed with its random numbers this gives its crops.
    low, high = (_f32(ratio) for ratio in aspect_ratio_range)
    for _ in range(max_attempts):
        aspect_ratio = _f32(random.random()) * (high - low) + low
        box = _draw_box(random, height, width, aspect_ratio, area_range)
        if box is None:
            continue
        if _f32(box.height * box.width) / _f32(height * width) >= _f32(min_object_covered):
            return box
    return Box(0, 0, height, width)


def _draw_box(
    random: np.random.Generator,
    height: int,
    width: int,
    aspect_ratio: np.float32,
    area_range: tuple[float, float],
) -> Box | None:
    """Draw size and position of a crop; `None` where no area of the aspect ratio is in range."""
    smallest, largest = (_f32(share) * _f32(width) * _f32(height) for share in area_range)
    lowest = _round(np.sqrt(smallest / aspect_ratio))
    highest = _round(np.sqrt(largest / aspect_ratio))
    if _round(_f32(highest) * aspect_ratio) > width:
        # The highest whose rounded width still fits; truncation may leave it one too high.
        highest = int((width + 0.5 - 1e-7) / float(aspect_ratio))
        highest -= _round(_f32(highest) * aspect_ratio) > width
    highest = min(highest, height)
    rows = min(lowest, highest)
    if rows < highest:
        rows += int(random.integers(highest - rows + 1))
    # Rounding may have left the range: one row more, or one less, comes back to it.
    if rows * _round(_f32(rows) * aspect_ratio) < smallest:
        rows += 1
    if rows * _round(_f32(rows) * aspect_ratio) > largest:
        rows -= 1
    columns = _round(_f32(rows) * aspect_ratio)
    is_in_range = smallest <= rows * columns <= largest
    if not is_in_range or not 0 < rows <= height or not 0 < columns <= width:
        return None
    # Like TensorFlow's, it never reaches the last row or column when it could.
    top = int(random.integers(height - rows)) if rows < height else 0
    left = int(random.integers(width - columns)) if columns < width else 0
    return Box(top, left, rows, columns)


def _round(value: np.floating) -> int:
    return int(np.rint(value))


def central_box(height: int, width: int, fraction: float) -> Box:
    """Return the centre of an image, `fraction` of each side, as `tf.image.central_crop` does.

    >>> central_box(299, 375, 0.875)
    Box(top=18, left=23, height=263, width=329)
    """
    top, left = (int((size - size * fraction) / 2) for size in (height, width))
    return Box(top, left, height - 2 * top, width - 2 * left)


def crop_or_pad(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Crop an image's centre, or pad it with zeros, along each axis independently.

    Arguments:
      image: `[H, W, C]`.

    Returns:
      `[height, width, C]` of the image's dtype.

    Source: TensorFlow's `resize_image_with_crop_or_pad`.

    >>> crop_or_pad(np.ones((3, 1, 1), np.uint8), 2, 4)[..., 0].tolist()
    [[0, 1, 0, 0], [0, 1, 0, 0]]
    """
    rows, columns = image.shape[:2]
    top, left = max((rows - height) // 2, 0), max((columns - width) // 2, 0)
    image = image[top : top + height, left : left + width]
    missing = [(size - have) for size, have in zip((height, width), image.shape[:2], strict=True)]
    if not any(missing):
        return image
    return np.pad(image, [*((n // 2, n - n // 2) for n in missing), (0, 0)])


def pad(image: np.ndarray, size: int) -> np.ndarray:
    """Pad `image` `[H, W, C]` with `size` rows and columns of zeros on each side.

    >>> pad(np.ones((2, 2, 1), np.uint8), 4).shape
    (10, 10, 1)
    """
    return np.pad(image, [(size, size), (size, size), (0, 0)])


def random_box(
    random: np.random.Generator, height: int, width: int, rows: int, columns: int
) -> Box:
    """Draw the position of a crop of `rows` x `columns` in an image of `height` x `width`.

    All positions are equally likely. Source: TensorFlow's `random_crop`.

    >>> random_box(np.random.default_rng(0), 40, 40, 32, 32)
    Box(top=7, left=5, height=32, width=32)
    """
    top = int(random.integers(height - rows + 1))
    left = int(random.integers(width - columns + 1))
    return Box(top, left, rows, columns)

"""OneFlow's preprocessors: image preprocessors inside `ImageCodec`, value preprocessors after.

Names and arguments are those of `oneflow.data`. Image preprocessors see `[H, W, C]` uint8 in BGR,
opencv's order; value preprocessors see the blob's array in its declared dtype. What is random
draws from `(seed, epoch, record)`, so that a resumed run sees the same images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from penstock._image_resizing import resize
from penstock.readers._errors import FeatureError, check_choice
from penstock.readers.records.image_decoding import ImageError

Random = np.random.Generator | None


class Preprocessor(Protocol):
    """One step over an array."""

    @property
    def is_random(self) -> bool:
        """Return whether it draws random numbers."""
        ...

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the processed array.

        Raises:
          RecordError: the array has a shape it cannot process.
        """
        ...


@dataclass(frozen=True)
class _SizedPreprocessor:
    """What the preprocessors to a size share. Width comes first, as in OneFlow."""

    width: int
    height: int

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1:
            raise ValueError(
                f"{type(self).__name__} got width={self.width}, height={self.height}, expected "
                "sizes >= 1. They count pixels. Pass the width, then the height."
            )


@dataclass(frozen=True)
class ImageResizePreprocessor(_SizedPreprocessor):
    """Resize to `[height, width, C]`, bilinear. Width comes first, as in OneFlow.

    >>> ImageResizePreprocessor(6, 4)(np.zeros((8, 8, 3), np.uint8), None).shape
    (4, 6, 3)
    """

    is_random: bool = field(default=False, init=False)

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the resized image."""
        return _resize(array, self.height, self.width)


@dataclass(frozen=True)
class ImagePreprocessor:
    """Swap blue and red (`"bgr2rgb"`), or flip horizontally with probability 0.5 (`"mirror"`).

    >>> ImagePreprocessor("bgr2rgb")(np.asarray([[[1, 2, 3]]], np.uint8), None).tolist()
    [[[3, 2, 1]]]
    """

    preprocessor: Literal["bgr2rgb", "mirror"]

    def __post_init__(self) -> None:
        why = "OneFlow knows no other by name"
        check_choice("ImagePreprocessor", self.preprocessor, ("bgr2rgb", "mirror"), why)

    @property
    def is_random(self) -> bool:
        """Return whether it flips at random."""
        return self.preprocessor == "mirror"

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the image with colours swapped, or mirrored or not."""
        if self.preprocessor == "bgr2rgb":
            return array[..., ::-1]
        return array[:, ::-1] if _get_generator(random).random() < 0.5 else array


@dataclass(frozen=True)
class ImageCropPreprocessor(_SizedPreprocessor):
    """Crop `[height, width, C]` at a random position, or at the top left with `random_xy=False`.

    >>> ImageCropPreprocessor(2, 3, random_xy=False)(np.zeros((8, 8, 3), np.uint8), None).shape
    (3, 2, 3)
    """

    random_xy: bool = field(default=True, kw_only=True)

    @property
    def is_random(self) -> bool:
        """Return whether the position is random."""
        return self.random_xy

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the part.

        Raises:
          ImageError: the image is smaller than the part.
        """
        high, wide = array.shape[0] - self.height, array.shape[1] - self.width
        if high < 0 or wide < 0:
            raise ImageError(
                f"ImageCropPreprocessor got an image of {array.shape[0]} x {array.shape[1]}, "
                f"expected at least {self.height} x {self.width}. Resize first."
            )
        y, x = (_get_generator(random).integers((high + 1, wide + 1))) if self.random_xy else (0, 0)
        return array[y : y + self.height, x : x + self.width]


@dataclass(frozen=True)
class ImageCenterCropPreprocessor(_SizedPreprocessor):
    """Crop the largest centred region of aspect ratio `width / height`, then resize it.

    >>> ImageCenterCropPreprocessor(4, 4)(np.zeros((8, 16, 3), np.uint8), None).shape
    (4, 4, 3)
    """

    is_random: bool = field(default=False, init=False)

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the resized centre."""
        rows, columns = array.shape[:2]
        high = max(1, min(rows, columns * self.height // self.width))
        wide = max(1, min(columns, rows * self.width // self.height))
        y, x = (rows - high) // 2, (columns - wide) // 2
        return _resize(array[y : y + high, x : x + wide], self.height, self.width)


@dataclass(frozen=True)
class ImageRandomSizeCropPreprocessor(_SizedPreprocessor):
    """Crop a random area and aspect ratio, then resize: OneFlow's `crop_with_random_size`.

    If no crop fits within `max_num_attempts` draws, the centre is taken instead.

    Args:
      aspect_ratio: range of the crop's width / height.
      area: range of the crop's area, as a fraction of the image's.
      max_num_attempts: number of draws.

    >>> crop = ImageRandomSizeCropPreprocessor(4, 4)
    >>> crop(np.zeros((8, 16, 3), np.uint8), np.random.default_rng(0)).shape
    (4, 4, 3)
    """

    aspect_ratio: tuple[float, float] = field(default=(0.75, 1.33), kw_only=True)
    area: tuple[float, float] = field(default=(0.05, 1.0), kw_only=True)
    max_num_attempts: int = field(default=100, kw_only=True)
    is_random: bool = field(default=True, init=False)

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the resized part."""
        generator = _get_generator(random)
        rows, columns = array.shape[:2]
        for _ in range(self.max_num_attempts):
            area = rows * columns * generator.uniform(*self.area)
            ratio = generator.uniform(*self.aspect_ratio)
            high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < high <= rows and 0 < wide <= columns:
                y, x = generator.integers((rows - high + 1, columns - wide + 1))
                return _resize(array[y : y + high, x : x + wide], self.height, self.width)
        # As OneFlow does, where no part fits: every image gives a sample.
        return ImageCenterCropPreprocessor(self.width, self.height)(array, None)


@dataclass(frozen=True)
class NormByChannelPreprocessor:
    """Normalise each channel of a float blob: `(x - mean) / std`.

    Args:
      mean: one value per channel.
      std: one value per channel, or one for all.
      data_format: `"channels_last"`, `"channels_first"`, or `"no_channel"` with one mean.

    Means are in the order of the image's channels: BGR, unless `ImagePreprocessor("bgr2rgb")`
    comes before. (OneFlow's AlexNet example subtracts RGB means from BGR images.)

    >>> norm = NormByChannelPreprocessor((1.0, 2.0, 3.0))
    >>> norm(np.full((1, 1, 3), 3.0, np.float32), None).tolist()
    [[[2.0, 1.0, 0.0]]]
    """

    mean: Sequence[float]
    std: Sequence[float] = (1.0, 1.0, 1.0)
    data_format: Literal["channels_last", "channels_first", "no_channel"] = "channels_last"
    is_random: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        mean = tuple(float(value) for value in np.atleast_1d(self.mean))
        std = tuple(float(value) for value in np.atleast_1d(self.std))
        # The default of three ones suits any number of channels.
        std = std[:1] if len(set(std)) == 1 else std
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)
        known = ("channels_last", "channels_first", "no_channel")
        if self.data_format not in known or len(std) not in (1, len(mean)) or 0.0 in std:
            raise ValueError(
                f"NormByChannelPreprocessor got {len(mean)} means, std={std}, "
                f"data_format={self.data_format!r}, expected one non-zero std a mean and a "
                f"data_format of {known}. Give one value a channel."
            )

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the normalised array.

        Raises:
          FeatureError: the array has another number of channels than means.
        """
        axis = {"channels_last": -1, "channels_first": 0, "no_channel": None}[self.data_format]
        channels = 1 if axis is None else array.shape[axis] if array.ndim else 0
        if channels != len(self.mean):
            raise FeatureError(
                f"NormByChannelPreprocessor got shape {array.shape} with "
                f"data_format={self.data_format!r}, expected {len(self.mean)} channels. There is "
                "one mean a channel. Give one mean a channel, or another data_format."
            )
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        if self.data_format == "channels_first":
            shape = (-1,) + (1,) * (array.ndim - 1)
            mean, std = mean.reshape(shape), std.reshape(shape)
        return ((array - mean) / std).astype(array.dtype, copy=False)


def run_preprocessors(
    preprocessors: Sequence[Preprocessor], array: np.ndarray, random: Random
) -> np.ndarray:
    """Return the array after every preprocessor in turn."""
    for preprocessor in preprocessors:
        array = preprocessor(array, random)
    return array


def _resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    # opencv refuses a mirrored view, whose strides are negative.
    return resize(np.ascontiguousarray(image), height, width, "bilinear")


def _get_generator(random: Random) -> np.random.Generator:
    # Called by hand, without a reader and so without a seed.
    return np.random.default_rng() if random is None else random

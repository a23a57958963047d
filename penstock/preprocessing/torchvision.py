"""torchvision's and timm's preprocessing: a crop of any shape; each colour's mean, deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import numpy as np

from penstock._errors import listed
from penstock.preprocessing import colour
from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register
from penstock.preprocessing.antialiasing import INTERPOLATIONS, Interpolation, resize_antialiased
from penstock.preprocessing.crops import Box, random_box

_MAX_ATTEMPTS = 10


@register("torchvision")
@dataclass(frozen=True, kw_only=True)
class Torchvision(Preprocessing):
    """torchvision's preprocessing, used for resnet50, resnext50 and most torch weights.

    Training: a random crop of 0.08 to 1 of the area, with an aspect ratio of 3/4 to 4/3, resized; a
    random flip. Evaluation: the image is resized, and a centre crop of `crop_fraction` of its
    shorter side is taken: 224 pixels of 256. Both: scaled to 0..1, then normalised with the mean
    and standard deviation of each channel. Resizing is Pillow's (`resize_antialiased`), which
    rounds after each pass: the host part returns uint8.

    Source: torchvision's `ImageClassification` preset and reference training; timm's `crop_pct` is
    `crop_fraction`.

    Arguments:
      means: the means of red, green and blue, in 0..1.
      deviations: the standard deviations of red, green and blue, in 0..1.
      crop_fraction: the fraction of the shorter side that evaluation keeps. torchvision's second
        weights use 0.965: 224 pixels of 232.
      interpolation: `"bilinear"`, or `"bicubic"` as for most of timm's weights.
      area_range: range of the crop's area, as a fraction of the image's.
      aspect_ratio_range: range of the crop's width / height.

    >>> Torchvision().for_evaluation(224).height
    224
    """

    means: tuple[float, float, float] = (0.485, 0.456, 0.406)
    deviations: tuple[float, float, float] = (0.229, 0.224, 0.225)
    crop_fraction: float = 0.875
    interpolation: Interpolation = "bilinear"
    area_range: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        are_right = {
            "means": len(self.means) == 3,
            "deviations": len(self.deviations) == 3 and min(self.deviations) > 0,
            "crop_fraction": 0 < self.crop_fraction <= 1,
            "interpolation": self.interpolation in INTERPOLATIONS,
            "area_range": 0 < self.area_range[0] <= self.area_range[1] <= 1,
            "aspect_ratio_range": 0 < self.aspect_ratio_range[0] <= self.aspect_ratio_range[1],
        }
        self.check_options(
            are_right,
            "three means, three deviations above 0, shares from 0 to 1, rising ranges, and an "
            f"interpolation of {listed(INTERPOLATIONS)}",
            "They say what the network was trained on",
            "Leave them out for those of torchvision's weights",
        )

    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Return a crop, resized: `[height, width, 3]` uint8."""
        if random is not None:
            box = self._draw_box(random, image.shape[0], image.shape[1])
            part = np.ascontiguousarray(box.of(image))
            return resize_antialiased(part, height, width, method=self.interpolation)
        rows, columns = self._find_resized_size(image.shape[0], image.shape[1], max(height, width))
        # Python rounds halves to the even number, as torchvision does.
        top, left = round((rows - height) / 2), round((columns - width) / 2)
        return resize_antialiased(
            image,
            rows,
            columns,
            method=self.interpolation,
            window=Box(top, left, height, width),
        )

    def draw(self, key: jax.Array) -> jax.Array:
        """Return whether one image is flipped."""
        return jax.random.bernoulli(key)

    def finish(self, image: jax.Array, draws: jax.Array | None) -> jax.Array:
        """Return the normalised image, about -2.1 to 2.7."""
        image = image if draws is None else colour.flip(image, draws)
        # In 0..255 on both sides of the division: one rounding less than from 0..1.
        means, deviations = (
            255 * np.asarray(values, np.float32).reshape(1, 1, 3)
            for values in (self.means, self.deviations)
        )
        return (image - means) / deviations

    def _find_resized_size(self, height: int, width: int, size: int) -> tuple[int, int]:
        """Return the size of the whole image whose centre of `size` is cut out."""
        shorter = math.floor(size / self.crop_fraction)
        if height <= width:
            return shorter, int(shorter * width / height)
        return int(shorter * height / width), shorter

    def _draw_box(self, random: np.random.Generator, height: int, width: int) -> Box:
        """Draw a part of an image as torchvision's `RandomResizedCrop` does."""
        low, high = (math.log(ratio) for ratio in self.aspect_ratio_range)
        for _ in range(_MAX_ATTEMPTS):
            area = height * width * random.uniform(*self.area_range)
            ratio = math.exp(random.uniform(low, high))
            rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < rows <= height and 0 < columns <= width:
                return random_box(random, height, width, rows, columns)
        return self._find_central_box(height, width)

    def _find_central_box(self, height: int, width: int) -> Box:
        """Return the largest centre whose aspect ratio is in range."""
        narrowest, widest = self.aspect_ratio_range
        rows, columns = height, width
        if width / height < narrowest:
            rows = min(max(round(width / narrowest), 1), height)
        elif width / height > widest:
            columns = min(max(round(height * widest), 1), width)
        return Box((height - rows) // 2, (width - columns) // 2, rows, columns)


@register("torchvision_v2")
def torchvision_v2() -> Torchvision:
    """Return the preprocessing of torchvision's second weights, `IMAGENET1K_V2`: 232 for 224."""
    return Torchvision(crop_fraction=0.965)


@register("torchvision_mild")
def torchvision_mild() -> Torchvision:
    """Return torchvision's with crops of 0.4 to 1 of the area, for few images and few epochs."""
    return Torchvision(area_range=(0.4, 1.0))

"""Inception's preprocessing: a crop of any shape, colours, -1 to 1."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock.preprocessing import colour
from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register
from penstock.preprocessing.crops import central_box, sample_box
from penstock.preprocessing.resizing import METHODS, resize

_MAX_BRIGHTNESS = 32 / 255
_MAX_HUE = 0.2
# Of saturation and contrast.
_FACTORS = (0.5, 1.5)


class InceptionDraws(NamedTuple):
    """What one image draws on the device; the last three only without `fast_mode`.

    Brightness is added, of a range of 1; hue is a part of the circle; `order` is that of `_ORDERS`.
    """

    is_flipped: jax.Array
    brightness: jax.Array
    saturation: jax.Array
    hue: jax.Array
    contrast: jax.Array
    order: jax.Array


@register("inception")
@dataclass(frozen=True, kw_only=True)
class Inception(Preprocessing):
    """Inception's preprocessing, also used for mobilenet, nasnet, alexnet_v2 and overfeat.

    Training: a random crop (see `preprocessing.sample_box`), resized without keeping its aspect
    ratio; a random flip; brightness by up to 32/255, then saturation by 0.5 to 1.5; clipped.
    Evaluation: a centre crop of 0.875 of each side, resized. Both: scaled to -1..1. Source:
    TF-Slim's `inception_preprocessing`.

    Arguments:
      fast_mode: the default of TF-Slim's and FastNN's trainers. False draws, for each image, one of
        four resizing methods and one of four orders of brightness, saturation, hue and contrast.
      aspect_ratio_range: range of the crop's width / height.
      area_range: range of the crop's area, as a fraction of the image's.
      min_object_covered: a second lower bound on that area.
      max_attempts: number of attempts to draw such a crop; then the whole image is taken.
      central_fraction: the fraction of each side that evaluation keeps.

    >>> Inception(fast_mode=False, dtype="uint8").for_training(299).height
    299
    """

    fast_mode: bool = True
    aspect_ratio_range: tuple[float, float] = (0.75, 1.33)
    area_range: tuple[float, float] = (0.05, 1.0)
    min_object_covered: float = 0.1
    max_attempts: int = 100
    central_fraction: float = 0.875

    def __post_init__(self) -> None:
        super().__post_init__()
        are_right = {
            "aspect_ratio_range": 0 < self.aspect_ratio_range[0] <= self.aspect_ratio_range[1],
            "area_range": 0 <= self.area_range[0] <= self.area_range[1] <= 1,
            "min_object_covered": 0 <= self.min_object_covered <= 1,
            "max_attempts": self.max_attempts >= 1,
            "central_fraction": 0 < self.central_fraction <= 1,
        }
        self.check_options(
            are_right,
            "rising positive ranges, shares from 0 to 1 and at least one attempt",
            "They say which crops are drawn",
            "Leave them out for those of the published networks",
        )

    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Return the crop, resized: `[height, width, 3]` float32."""
        if random is None:
            box = central_box(image.shape[0], image.shape[1], self.central_fraction)
            return resize(box.of(image), height, width)
        box = sample_box(
            random,
            *image.shape[:2],
            aspect_ratio_range=self.aspect_ratio_range,
            area_range=self.area_range,
            min_object_covered=self.min_object_covered,
            max_attempts=self.max_attempts,
        )
        method = METHODS[0 if self.fast_mode else random.integers(len(METHODS))]
        return resize(box.of(image), height, width, method=method)

    def draw(self, key: jax.Array) -> InceptionDraws:
        """Return the random numbers of one image."""
        # One draw of six numbers compiles in half the time of six draws.
        numbers = jax.random.uniform(key, (6,), jnp.float32)
        low, high = _FACTORS
        return InceptionDraws(
            is_flipped=numbers[0] < 0.5,
            brightness=_MAX_BRIGHTNESS * (2 * numbers[1] - 1),
            saturation=low + (high - low) * numbers[2],
            hue=_MAX_HUE * (2 * numbers[3] - 1),
            contrast=low + (high - low) * numbers[4],
            order=(len(_ORDERS) * numbers[5]).astype(jnp.int32),
        )

    def finish(self, image: jax.Array, draws: InceptionDraws | None) -> jax.Array:
        """Return the image in -1..1."""
        image = image / 255
        if draws is not None:
            image = colour.flip(image, draws.is_flipped)
            if self.fast_mode:
                image = colour.adjust_brightness(image, draws.brightness)
                image = colour.adjust_saturation(image, draws.saturation)
            else:
                image = _adjust_colours(image, draws)
            image = image.clip(0, 1)
        return (image - 0.5) * 2


_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)
_OPERATIONS = {
    "brightness": colour.adjust_brightness,
    "saturation": colour.adjust_saturation,
    "hue": colour.adjust_hue,
    "contrast": colour.adjust_contrast,
}


def _adjust_colours(image: jax.Array, draws: InceptionDraws) -> jax.Array:
    """Apply all four operations, in the order that the image drew."""

    def apply(names: tuple[str, ...], image: jax.Array) -> jax.Array:
        for name in names:
            image = _OPERATIONS[name](image, getattr(draws, name))
        return image

    # Under vmap XLA computes all four orders and picks one.
    branches = [functools.partial(apply, names) for names in _ORDERS]
    return jax.lax.switch(draws.order, branches, image)

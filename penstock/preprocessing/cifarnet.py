"""Cifarnet's preprocessing: a shifted crop, brightness, contrast, each image standardised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock.preprocessing import colour
from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register
from penstock.preprocessing.crops import crop_or_pad, pad, random_box

_MAX_BRIGHTNESS = 63
_CONTRAST = (0.2, 1.8)


class CifarnetDraws(NamedTuple):
    """What one image draws on the device; brightness is added, of a range of 255."""

    is_flipped: jax.Array
    brightness: jax.Array
    contrast: jax.Array


@register("cifarnet")
@dataclass(frozen=True, kw_only=True)
class Cifarnet(Preprocessing):
    """Cifarnet's preprocessing, for small images; it never resizes.

    Training: zero padding, a random crop, a random flip, brightness by up to 63 of 255, contrast by
    0.2 to 1.8. Evaluation: a centre crop, or zero padding. Both: each image is standardised to mean
    0 and standard deviation 1. Source: TF-Slim's `cifarnet_preprocessing`.

    Arguments:
      padding: zeros on each side before the random crop, in pixels.

    >>> Cifarnet().host(np.ones((32, 32, 3), np.uint8), 24, 24, is_training=False).dtype.name
    'uint8'
    """

    padding: int = 4

    channels = (1, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_options(
            {"padding": self.padding >= 0},
            "at least 0",
            "It counts the zeros on each side",
            "Pass 0 for none",
        )

    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Return the crop: `[height, width, C]` uint8."""
        if random is None:
            return crop_or_pad(image, height, width)
        rows, columns = (size + 2 * self.padding for size in image.shape[:2])
        remedy = "Ask for a smaller size, resize the images in the reader, or raise padding"
        self.check_covers(image, rows, columns, height, width, remedy)
        return random_box(random, rows, columns, height, width).of(pad(image, self.padding))

    def draw(self, key: jax.Array) -> CifarnetDraws:
        """Return the random numbers of one image."""
        numbers = jax.random.uniform(key, (3,), jnp.float32)
        low, high = _CONTRAST
        return CifarnetDraws(
            is_flipped=numbers[0] < 0.5,
            brightness=_MAX_BRIGHTNESS * (2 * numbers[1] - 1),
            contrast=low + (high - low) * numbers[2],
        )

    def finish(self, image: jax.Array, draws: CifarnetDraws | None) -> jax.Array:
        """Return the image with mean 0 and standard deviation 1."""
        if draws is not None:
            image = colour.flip(image, draws.is_flipped)
            image = colour.adjust_brightness(image, draws.brightness)
            image = colour.adjust_contrast(image, draws.contrast)
        return colour.standardize(image)

"""Lenet's preprocessing: the centre of an image, -1 to 1."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register
from penstock.preprocessing.crops import crop_or_pad


@register("lenet")
@dataclass(frozen=True, kw_only=True)
class Lenet(Preprocessing):
    """Lenet's preprocessing, the same in training and evaluation.

    A centre crop, or zero padding; then `(x - 128) / 128`. Source: TF-Slim's
    `lenet_preprocessing`.

    >>> Lenet().host(np.ones((8, 8, 1), np.uint8), 28, 28, is_training=False).sum()
    np.uint64(64)
    """

    channels = (1, 3)

    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Return the centre, or the image with zeros around it: `[height, width, C]` uint8."""
        return crop_or_pad(image, height, width)

    def finish(self, image: jax.Array, draws: object) -> jax.Array:
        """Return the image in -1..1."""
        return (image - 128) / 128

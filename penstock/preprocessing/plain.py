"""What draws no random numbers: Lenet's centre of an image, and no preprocessing at all."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register
from penstock.preprocessing.crops import crop_or_pad


@register("none")
@dataclass(frozen=True, kw_only=True)
class Plain(Preprocessing):
    """No preprocessing, for networks published without one: images as floats in 0..255.

    >>> Plain().host(np.ones((8, 8, 1), np.uint8), 8, 8, is_training=False).shape
    (8, 8, 1)
    """

    channels = (1, 3)

    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Return the image, which has the size already: `[height, width, C]` uint8."""
        if image.shape[:2] != (height, width):
            raise self.error(
                f"an image of {image.shape[0]} x {image.shape[1]}",
                f"{height} x {width}",
                "It neither crops nor resizes",
                "Resize in the reader, e.g. image_folder(size=), or choose one that does",
            )
        return image

    def finish(self, image: jax.Array, draws: object) -> jax.Array:
        """Return the image as it is."""
        return image


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

"""The preprocessing of networks that were published without one."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register


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

"""Images as arrays: made larger or smaller, and written as PNG."""

from __future__ import annotations

from typing import Literal

import numpy as np

Interpolation = Literal["bilinear", "area"]


def resize(image: np.ndarray, height: int, width: int, how: Interpolation) -> np.ndarray:
    """Return an image `[H, W, C]` as `[height, width, C]`.

    >>> resize(np.zeros((8, 8, 1), np.uint8), 4, 6, "area").shape
    (4, 6, 1)
    """
    import cv2

    interpolation = cv2.INTER_LINEAR if how == "bilinear" else cv2.INTER_AREA
    resized = cv2.resize(image, (width, height), interpolation=interpolation)
    # opencv drops an axis of size 1.
    return resized.reshape(height, width, image.shape[2])


def encode_png(image: np.ndarray) -> bytes:
    """Encode uint8 `[H, W, 1]` gray, `[H, W, 3]` RGB or `[H, W, 4]` RGBA as PNG.

    >>> encode_png(np.zeros((2, 2, 1), np.uint8))[1:4]
    b'PNG'
    """
    import cv2

    image = np.ascontiguousarray(image)
    codes = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}
    bgr = cv2.cvtColor(image, codes[image.shape[2]]) if image.shape[2] in codes else image
    return cv2.imencode(".png", bgr)[1].tobytes()

"""Resizing by Pillow's rules, in numpy: half-pixel centres, and a low-pass filter when shrinking.

`torchvision.transforms.Resize` does so, with which networks of torch were trained and published.
Weights are fixed-point numbers and each of the two passes rounds to bytes, as in Pillow: results
are equal to the last bit. Pillow itself is no dependency.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from penstock._errors import PreprocessingError, check_known
from penstock.preprocessing.crops import Box
from penstock.preprocessing.resizing import Sampling, check_pixels, resample_columns, resample_rows

Interpolation = Literal["bilinear", "bicubic"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)

# A byte times a weight, with a bit for bicubic's overshoot, fits in int32.
_FRACTION_BITS = 22
# Values that fit in a core's cache.
_BLOCK = 1 << 17


def resize_antialiased(
    image: np.ndarray,
    height: int,
    width: int,
    *,
    method: Interpolation = "bilinear",
    window: Box | None = None,
) -> np.ndarray:
    """Resize an image as Pillow's `Image.resize` and torchvision's `Resize` do.

    Each output pixel is a weighted mean of all input pixels that it covers, which avoids aliasing
    when shrinking. `resize` is TensorFlow 1's way, without antialiasing.

    Arguments:
      image: `[H, W, C]` uint8.
      height: height of the resized image.
      width: width of the resized image.
      method: `"bilinear"` or `"bicubic"`.
      window: compute only this part of the resized image.

    Returns:
      `[height, width, C]` uint8, or the window's size.

    Raises:
      PreprocessingError: an empty image, another dtype, or sizes below 1.
      UnknownNameError: no such method.

    Source: Pillow's `Resample.c`.

    >>> ramp = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 10
    >>> resize_antialiased(ramp, 2, 2)[..., 0].tolist()
    [[36, 52], [98, 114]]
    """
    check_pixels("resize_antialiased", image, height, width)
    why = "An output pixel is a mean of bytes, rounded. Give it the decoded image."
    thing, dtype = "resize_antialiased got an image of ", image.dtype.name
    check_known(thing, dtype, ["uint8"], why, PreprocessingError)
    check_known("resize_antialiased", method, INTERPOLATIONS)
    top, left, rows, columns = window or Box(0, 0, height, width)
    vertical = _sample(image.shape[0], height, top, top + rows, method)
    horizontal = _sample(image.shape[1], width, left, left + columns, method)
    # Only the rows that the window needs.
    first, last = int(vertical.indices.min()), int(vertical.indices.max()) + 1
    vertical = Sampling(vertical.indices - first, vertical.weights)
    # Columns first, as Pillow until version 13, on whose bytes torchvision's numbers were
    # published: each pass rounds, so that the order decides the last bit.
    image = resample_columns(image[first:last], horizontal, _mix_bytes_in_parts)
    return resample_rows(image, vertical, _mix_bytes)


def _mix_bytes_in_parts(
    flat: np.ndarray, indices: np.ndarray, weights: np.ndarray, axis: int
) -> np.ndarray:
    # In parts that a cache holds: a photo of 12 megapixels takes a quarter of the time.
    size = max(_BLOCK // flat.shape[1], 1)
    parts = (flat[start : start + size] for start in range(0, len(flat), size))
    return np.concatenate([_mix_bytes(part, indices, weights, axis) for part in parts])


def _mix_bytes(flat: np.ndarray, indices: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    # Converted once: numpy casts a product's operands piece by piece.
    wide = flat.astype(np.int32)
    # Half of a byte's step, which rounds.
    total = np.int32(1 << (_FRACTION_BITS - 1))
    for index, weight in zip(indices, weights, strict=True):
        part = wide.take(index, axis)
        part *= weight
        part += total
        total = part
    total >>= _FRACTION_BITS
    return total.clip(0, 255).astype(np.uint8)


# Photos of one camera have one size, and so has the window in evaluation.
@functools.lru_cache(maxsize=64)
def _sample(in_size: int, out_size: int, start: int, stop: int, method: Interpolation) -> Sampling:
    """Return the inputs of the outputs `start` to `stop`, with fixed-point weights."""
    function, reach = _FILTERS[method]
    scale = in_size / out_size
    # When shrinking, the filter is as wide as what a pixel covers.
    stretch = max(scale, 1.0)
    centers = (np.arange(start, stop) + 0.5) * scale
    # Truncated, as a cast in C.
    first = np.maximum(np.trunc(centers - reach * stretch + 0.5), 0).astype(np.intp)
    last = np.minimum(np.trunc(centers + reach * stretch + 0.5), in_size).astype(np.intp)
    indices = first + np.arange(int((last - first).max()))[:, np.newaxis]
    weights = function(np.abs((indices - centers + 0.5) * (1.0 / stretch)))
    weights = np.where(indices < last, weights, 0.0)
    weights = weights / weights.sum(axis=0)
    fixed = np.trunc(weights * (1 << _FRACTION_BITS) + np.copysign(0.5, weights))
    return Sampling(np.minimum(indices, in_size - 1), fixed.astype(np.int32))


def _triangle_filter(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - distance, 0.0)


def _cubic_filter(distance: np.ndarray) -> np.ndarray:
    a = -0.5
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return np.where(distance < 1.0, near, np.where(distance < 2.0, far, 0.0))


_FILTERS: dict[Interpolation, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_triangle_filter, 1.0),
    "bicubic": (_cubic_filter, 2.0),
}

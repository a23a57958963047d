"""Resizing by Pillow's rules, in numpy: half-pixel centres, and a low-pass filter when shrinking.

It is what `torchvision.transforms.Resize` does to images, so what networks of torch were trained
and published with. Weights are fixed-point numbers and each of the two passes rounds to bytes, as
in Pillow: results are equal to the last bit. Columns come first, as they did when those networks
were published; Pillow 13 begins with rows where that is less work. Pillow itself is no dependency.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from penstock._errors import UnknownNameError, listed, nearest
from penstock.preprocessing._errors import PreprocessingError, message
from penstock.preprocessing.crops import Box

Interpolation = Literal["bilinear", "bicubic"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)

_FRACTION_BITS = 22  # a byte times a weight, with a bit for bicubic's overshoot, fits in int32
_BLOCK = 1 << 17  # values


class _Taps(NamedTuple):
    """Which inputs make an output: `rows` `[taps, out]`, and fixed-point `weights` of the same."""

    rows: np.ndarray
    weights: np.ndarray


def resize_antialiased(
    image: np.ndarray,
    height: int,
    width: int,
    *,
    method: Interpolation = "bilinear",
    window: Box | None = None,
) -> np.ndarray:
    """Resize an image as Pillow's `Image.resize` and torchvision's `Resize` do.

    An output pixel is a mean of all input pixels that it covers, so that shrinking leaves no
    aliases. `resize` is TensorFlow 1's way, which takes two pixels along each axis.

    Arguments:
      image: `[H, W, C]` uint8.
      height: of the resized image, as `width`.
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
    if image.ndim != 3 or image.dtype != np.uint8 or 0 in image.shape or min(height, width) < 1:
        raise PreprocessingError(
            message(
                "resize_antialiased",
                f"an array of shape {list(image.shape)} and dtype {image.dtype}, and the size "
                f"{height} x {width}",
                "[H, W, C] uint8 with pixels in it, and a size of at least 1 x 1",
                "An output pixel is a mean of bytes, rounded",
                "Give it the decoded image",
            )
        )
    if method not in INTERPOLATIONS:
        raise UnknownNameError(
            f"resize_antialiased got {method!r}, expected one of {listed(INTERPOLATIONS)}."
            + nearest(method, INTERPOLATIONS)
        )
    top, left, rows, columns = window or Box(0, 0, height, width)
    down = _taps(image.shape[0], height, top, top + rows, method)
    across = _taps(image.shape[1], width, left, left + columns, method)
    # Columns first, as Pillow: the bytes between the passes decide the last bit. Of the rows only
    # those that the window needs.
    first, last = int(down.rows.min()), int(down.rows.max()) + 1
    return _down(_across(image[first:last], across), _Taps(down.rows - first, down.weights))


def _down(image: np.ndarray, taps: _Taps) -> np.ndarray:
    flat = image.reshape(image.shape[0], -1)
    mixed = _mix(flat, taps.rows, taps.weights[:, :, np.newaxis], axis=0)
    return mixed.reshape(-1, *image.shape[1:])


def _across(image: np.ndarray, taps: _Taps) -> np.ndarray:
    height, width, channels = image.shape
    flat = image.reshape(height, width * channels)  # a gather of single values beats one of pixels
    columns = taps.rows[:, :, np.newaxis] * channels + np.arange(channels)
    columns = columns.reshape(len(taps.rows), -1)
    weights = np.repeat(taps.weights, channels, axis=1)[:, np.newaxis]
    # In parts that a cache holds: a photo of 12 megapixels takes a quarter of the time.
    size = max(_BLOCK // flat.shape[1], 1)
    parts = (flat[start : start + size] for start in range(0, height, size))
    mixed = np.concatenate([_mix(part, columns, weights, axis=1) for part in parts])
    return mixed.reshape(height, -1, channels)


def _mix(flat: np.ndarray, taken: np.ndarray, weights: np.ndarray, *, axis: int) -> np.ndarray:
    """Return the weighted sum of rows or columns, rounded to bytes."""
    wide = flat.astype(np.int32)  # once: numpy casts a product's operands piece by piece
    total = np.int32(1 << (_FRACTION_BITS - 1))
    for each, weight in zip(taken, weights, strict=True):
        part = wide.take(each, axis)
        part *= weight
        part += total
        total = part
    total >>= _FRACTION_BITS
    return total.clip(0, 255).astype(np.uint8)


@functools.lru_cache(maxsize=64)  # photos of one camera have one size, and a window in evaluation
def _taps(in_size: int, out_size: int, start: int, stop: int, method: Interpolation) -> _Taps:
    """Return the taps of the outputs `start` to `stop`; every row of weights sums to about 1."""
    function, reach = _FILTERS[method]
    scale = in_size / out_size
    stretch = max(scale, 1.0)  # when shrinking, the filter is as wide as what a pixel covers
    centers = (np.arange(start, stop) + 0.5) * scale
    # As a cast in C: what is below zero is cut, not rounded down.
    first = np.maximum(np.trunc(centers - reach * stretch + 0.5), 0).astype(np.intp)
    last = np.minimum(np.trunc(centers + reach * stretch + 0.5), in_size).astype(np.intp)
    rows = first + np.arange(int((last - first).max()))[:, np.newaxis]
    weights = function(np.abs((rows - centers + 0.5) * (1.0 / stretch)))
    weights = np.where(rows < last, weights, 0.0)
    weights = weights / weights.sum(axis=0)
    fixed = np.trunc(weights * (1 << _FRACTION_BITS) + np.copysign(0.5, weights))
    return _Taps(np.minimum(rows, in_size - 1), fixed.astype(np.int32))


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - distance, 0.0)


def _cubic(distance: np.ndarray) -> np.ndarray:
    a = -0.5
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return np.where(distance < 1.0, near, np.where(distance < 2.0, far, 0.0))


_FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
}

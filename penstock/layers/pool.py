"""Pooling over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError, check_choice
from penstock.layers import arguments
from penstock.layers._pooling_windows import add_up, take_maxima
from penstock.layers.arguments import DataFormat, Padding, Pair, Pairs


def pool2d(
    input: jax.Array,
    pool_size: int | Sequence[int] = -1,
    pool_type: Literal["max", "avg"] = "max",
    pool_stride: int | Sequence[int] = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    ceil_mode: bool = False,
    exclusive: bool = True,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Reduce windows of an image to their maximum or average.

    Padding is never the maximum. The same in train, test and infer. Source: Fluid's `pool2d`, with
    one difference: with `ceil_mode`, a last window that covers only padding is left out.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      pool_size: a number or `(height, width)`, like `pool_stride`.
      pool_padding: a number, `(height, width)`, `((top, bottom), (left, right))`, `"SAME"` or
        `"VALID"`. It must be smaller than the window.
      global_pooling: use one window over the whole image; size, stride and padding are ignored.
      ceil_mode: keep a last window that extends beyond the border.
      exclusive: average only over the pixels inside the image; with `False`, padding counts as
        zeros.

    Returns:
      `[B, H', W', C]` in the input's layout, with `H' = (H + top + bottom - height) // stride + 1`;
      with `ceil_mode` the division is rounded up. `[B, 1, 1, C]` with `global_pooling`.

    >>> import jax.numpy as jnp
    >>> image = jnp.arange(16.0).reshape(1, 4, 4, 1)
    >>> pool2d(image, pool_size=2, pool_stride=2)[0, :, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    x = jnp.asarray(input)
    check_choice("layers.pool2d", "pool_type", pool_type, ("max", "avg"))
    _, sizes = arguments.check_image("pool2d", x, data_format)
    if global_pooling:
        axes = (1, 2) if data_format == "NHWC" else (2, 3)
        reduce = jnp.max if pool_type == "max" else jnp.mean
        return reduce(x, axis=axes, keepdims=True)
    windows = arguments.as_pair("pool2d", "pool_size", pool_size, 1)
    strides = arguments.as_pair("pool2d", "pool_stride", pool_stride, 1)
    pads = arguments.as_padding("pool2d", "pool_padding", pool_padding, sizes, windows, strides)
    arguments.check_fits("pool2d", x, sizes, windows, pads)
    _check_padding(windows, pads)
    each = zip(sizes, windows, strides, pads, strict=True)
    (vertical, rows), (horizontal, columns) = (_windows_along(*one, ceil_mode) for one in each)
    if pool_type == "max":
        return take_maxima(x, windows, strides, (vertical, horizontal), data_format)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    sums = add_up(x, windows, strides, (vertical, horizontal), data_format)
    counts = np.outer(rows, columns)
    if not exclusive or np.all(counts == windows[0] * windows[1]):
        return sums / (windows[0] * windows[1])
    counts = np.expand_dims(counts, (0, 3) if data_format == "NHWC" else (0, 1))
    return sums / jnp.asarray(counts, sums.dtype)


def _windows_along(
    size: int, window: int, stride: int, pad: tuple[int, int], ceil_mode: bool
) -> tuple[tuple[int, int], np.ndarray]:
    """Return the padding of one axis and how many pixels of the image each window holds."""
    free = size + sum(pad) - window
    last = (-(-free // stride) if ceil_mode else free // stride) * stride
    # With `ceil_mode` a last window may begin behind the image: it would hold nothing.
    if last >= size + pad[0]:
        last -= stride
    starts = np.arange(0, last + 1, stride) - pad[0]
    # Of the image alone: numpy, since shapes are known when it is traced.
    pixels = np.minimum(starts + window, size) - np.maximum(starts, 0)
    return (pad[0], max(last + window - size - pad[0], 0)), pixels


def _check_padding(windows: Pair, pads: Pairs) -> None:
    if any(max(pad) >= window for pad, window in zip(pads, windows, strict=True)):
        raise ProgramError(
            f"layers.pool2d got pool_padding {pads} and pool_size {windows}, expected padding "
            "smaller than the window. A window would hold nothing but padding. Use less padding."
        )

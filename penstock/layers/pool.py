"""Pooling over images, with gradients that suit CPUs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import ProgramError, check_choice
from penstock._program.frame import find_frame, widen
from penstock.layers import arguments
from penstock.layers.arguments import DataFormat, Padding, Pair, Pairs

# Each pixel of a window is a term of one compiled sum.
_MOST_PIXELS = 49


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

    Padding is never the maximum. Source: Fluid's `pool2d`, with one difference: with `ceil_mode`, a
    last window that covers only padding is left out.

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

    >>> image = jnp.arange(16.0).reshape(1, 4, 4, 1)
    >>> pool2d(image, pool_size=2, pool_stride=2)[0, :, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    x = jnp.asarray(input)
    check_choice("layers.pool2d got pool_type=", pool_type, ("max", "avg"))
    _, sizes = arguments.check_image("pool2d", x, data_format)
    if global_pooling:
        axes = (1, 2) if data_format == "NHWC" else (2, 3)
        reduce = jnp.max if pool_type == "max" else jnp.mean
        return reduce(x, axis=axes, keepdims=True)
    windows = arguments.as_pair("pool2d", "pool_size", pool_size, 1)
    strides = arguments.as_pair("pool2d", "pool_stride", pool_stride, 1)
    pads = arguments.as_padding("pool2d", "pool_padding", pool_padding, sizes, windows, strides)
    arguments.check_fits("pool2d", x, sizes, windows, pads)
    if any(max(pad) >= window for pad, window in zip(pads, windows, strict=True)):
        raise ProgramError(
            f"layers.pool2d got pool_padding {pads} and pool_size {windows}, expected padding "
            "smaller than the window. A window would hold nothing but padding. Use less padding."
        )
    sides = zip(sizes, windows, strides, pads, strict=True)
    (vertical, rows), (horizontal, columns) = (_windows_along(*side, ceil_mode) for side in sides)
    places = Windows(data_format.index("H"), windows, strides, (vertical, horizontal))
    if pool_type == "max":
        take = max_windows_on_cpu if _is_for_cpu(x, windows) else max_windows
        return take(x, places)
    add = add_windows_on_cpu if _is_for_cpu(x, windows) else add_windows
    # A sum of 1,024 ones is 256 in bfloat16.
    sums = add(widen(x), places)
    counts = np.outer(rows, columns)
    if not exclusive or np.all(counts == windows[0] * windows[1]):
        means = sums / (windows[0] * windows[1])
    else:
        counts = np.expand_dims(counts, (0, 3) if data_format == "NHWC" else (0, 1))
        means = sums / jnp.asarray(counts, sums.dtype)
    return means.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else means


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


class Windows(NamedTuple):
    """Which windows of an image: `axis` is that of its height, the width is behind it."""

    axis: int
    size: Pair
    strides: Pair
    pads: Pairs

    def expand(self, pair: tuple[Any, Any], other: Any) -> list[Any]:
        """Return one value an axis: those of `pair` for height and width."""
        return [*[other] * self.axis, *pair, *[other] * (2 - self.axis)]


def _is_for_cpu(x: jax.Array, size: Pair) -> bool:
    frame = find_frame()
    is_on_cpu = frame is not None and frame.is_on_cpu and math.prod(size) <= _MOST_PIXELS
    return is_on_cpu and jnp.issubdtype(x.dtype, jnp.floating)


def max_windows(x: jax.Array, windows: Windows) -> jax.Array:
    """Return the maximum of each window, as XLA computes it."""
    # What every number is above, so that padding is no maximum.
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    lowest = -np.inf if is_float else jnp.iinfo(x.dtype).min
    return _reduce(x, lowest, lax.max, windows)


def add_windows(x: jax.Array, windows: Windows) -> jax.Array:
    """Return the sum of each window, as XLA computes it."""
    return _reduce(x, 0, lax.add, windows)


def _reduce(x: jax.Array, first: float, function: Callable[..., Any], windows: Windows) -> Any:
    return lax.reduce_window(
        x,
        np.full((), first, x.dtype),
        function,
        windows.expand(windows.size, 1),
        windows.expand(windows.strides, 1),
        windows.expand(windows.pads, (0, 0)),
    )


def add_windows_on_cpu(x: jax.Array, windows: Windows) -> jax.Array:
    """Return the sum of each window, as one of slices along each axis.

    XLA's CPU backend adds pixel by pixel. Forwards and backwards 12 ms, 21 by XLA, for 3x3 on
    `[16, 17, 17, 768]`, 4 and 17 on `[16, 8, 8, 1280]`. In one sum of all nine slices a step of
    Inception v3 takes a quarter more memory.
    """
    axis, (height, width), strides, pads = windows
    down = Windows(axis, (height, 1), (strides[0], 1), (pads[0], (0, 0)))
    across = Windows(axis, (1, width), (1, strides[1]), ((0, 0), pads[1]))
    return _add_slices(_add_slices(x, down), across)


def _add_slices(x: jax.Array, windows: Windows) -> jax.Array:
    shape = jax.eval_shape(lambda x: add_windows(x, windows), x).shape
    return functools.reduce(jnp.add, _cut(x, 0.0, shape, windows))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def max_windows_on_cpu(x: jax.Array, windows: Windows) -> jax.Array:
    """Return the maximum of each window, whose gradient is a sum over the window's pixels.

    XLA's CPU backend takes each window's maximum again with its place, scalar by scalar, and then
    scatters: forwards and backwards 237 ms for 3x3 by 2 on `[16, 112, 112, 64]`, this way 65; 107
    and 14 for 2x2 on `[16, 64, 64, 128]`. As there the first of equal pixels has the gradient.
    """
    return max_windows(x, windows)


@max_windows_on_cpu.defjvp
def _differentiate(
    windows: Windows, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    # A copy, which XLA computes once: its CPU backend (JAX 0.10.2) takes `x` and the array that `x`
    # is a reshape of for two, and writes a gradient over pixels that it still compares. Between a
    # tanh and a reshape and this, gradients were wrong by twice their size.
    precision = jnp.finfo(x.dtype)
    x = lax.reduce_precision(x, precision.nexp, precision.nmant)
    y = max_windows(x, windows)
    # Compared with each other and not with `y`: XLA computes a pixel again where it fuses what made
    # it, rounds it otherwise there, and no pixel would be equal to the maximum.
    best, *later = _cut(x, -jnp.inf, y.shape, windows)
    winner = jnp.zeros(y.shape, jnp.int8)
    for place, pixel in enumerate(later, 1):
        is_larger = pixel > best
        winner = jnp.where(is_larger, jnp.int8(place), winner)
        best = jnp.where(is_larger, pixel, best)
    moves = enumerate(_cut(dx, 0.0, y.shape, windows))
    # A sum of slices, from which JAX makes the gradient by itself.
    terms = [jnp.where(winner == place, move, jnp.zeros_like(move)) for place, move in moves]
    return y, functools.reduce(jnp.add, terms)


def _cut(x: jax.Array, padding: float, shape: tuple[int, ...], windows: Windows) -> list[jax.Array]:
    """Return the first pixel of all windows, their second, and so on.

    By slices of `x`, never of `x` in another shape: XLA (JAX 0.10.2) takes that for another array,
    and writes a gradient over the pixels that it still compares. After a tanh, whose gradient reads
    `x` too, that was wrong by twice its size.
    """
    edges = [(*pad, 0) for pad in windows.pads]
    x = lax.pad(x, jnp.asarray(padding, x.dtype), windows.expand((edges[0], edges[1]), (0, 0, 0)))
    steps, pixels = windows.expand(windows.strides, 1), []
    for offset in np.ndindex(*windows.size):
        begins = windows.expand(offset, 0)
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, shape, steps, strict=True)]
        pixels.append(lax.slice(x, begins, ends, steps))
    return pixels

"""Convolutions of images with zeros between their pixels, as convolutions of the images themselves.

XLA's CPU backend computes the gradient of the kernel of a spread image by a loop that is not
compiled for speed. Milliseconds, two cores, batch 16: as XLA's, in phases and joined; each the
forward pass, the gradient of the kernel and that of the image.

| image, kernel, stride | XLA | phases | joined |
|---|---|---|---|
| 7x7x128, 4x4 to 64, 2 | 1.4 59 1.1 | 1.4 1.5 1.3 | 2.5 3.8 2.7 |
| 56x56x64, 4x4 to 64, 2 | 190 6200 35 | 57 63 50 | 95 100 107 |
| 28x28x128, 3x3 to 64, 2 | 12 1600 6.7 | 10 16 11 | 14 20 18 |
| 16x16x256, 2x2 to 128, 2 | 5.9 580 4.9 | 4.9 7.3 5.7 | 4.8 8.4 6.7 |
| 28x28x21, 16x16 to 21, 8, batch 2 | - | 7.2 12 6.4 | 4.5 6.9 11 |

Phases of a stride of 8 are 64 convolutions, which take 8 times as long to compile. Dilated kernels
are left to XLA.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from penstock.layers.arguments import Pair, Pairs

_MOST_PHASES = 9

Plain = Callable[[jax.Array, jax.Array, Pairs], jax.Array]
"""A convolution of an image by a kernel, with this padding, and no strides."""


def convolve(
    x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs, plain: Plain, number: int = 1
) -> jax.Array:
    """Return the convolution of the spread image.

    Arguments:
      x: `[B, H, W, C]`, to have `spread - 1` zeros between its pixels, and `pads` around them.
      w: `[height, width, C, num_filters]`.
      number: how many such ones the program has in place of one.
    """
    # Phases that no pixel of the kernel meets are zeros, and no convolutions.
    num_phases = math.prod(map(min, spread, w.shape[:2]))
    compute = _in_phases if num_phases * number <= _MOST_PHASES else _joined
    return compute(x, w, spread, pads, plain)


def _in_phases(x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs, plain: Plain) -> jax.Array:
    """Return neighbours, which meet other pixels of the kernel each, from convolutions by these."""
    size, steps = _measure(x, w, spread, pads)
    phases = []
    for phase in itertools.product(*map(range, spread)):
        taps, edges = [], []
        for axis, first in enumerate(phase):
            before, step = pads[axis][0] - first, spread[axis]
            taps.append((min(before % step, w.shape[axis]), step))
            number = len(range(before % step, w.shape[axis], step))
            low = before // step
            edges.append((low, steps[axis] + number - 1 - x.shape[1 + axis] - low))
        starts, strides = zip(*taps, (0, 1), (0, 1), strict=True)
        kernel = lax.slice(w, starts, w.shape, strides)
        if 0 in kernel.shape:
            phases.append(jnp.zeros((x.shape[0], *steps, w.shape[3]), x.dtype))
        else:
            phases.append(plain(x, kernel, (edges[0], edges[1])))
    y = jnp.stack(phases, 3)
    return _interleave(y, spread, size)


def _joined(x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs, plain: Plain) -> jax.Array:
    """Return neighbours as channels of one convolution, by kernels with zeros at their edges.

    An infinite pixel makes neighbours nan: infinity times zero.
    """
    size, steps = _measure(x, w, spread, pads)
    widened, taps, edges = [], [], []
    for axis in (0, 1):
        step, side = spread[axis], w.shape[axis]
        # The kernel's pixel `k` meets the image's at `(o + k - before) / step` for an output `o`.
        # So many zeros before it, and its rows of `step` pixels are those that one output of each
        # phase meets, the last phase first.
        offset, zeros = divmod(step - 1 - pads[axis][0], step)
        number = math.ceil((side + zeros) / step)
        widened.append((zeros, number * step - side - zeros))
        taps.append(number)
        edges.append((-offset, steps[axis] + number - 1 - x.shape[1 + axis] + offset))
    w = jnp.pad(w, (*widened, (0, 0), (0, 0)))
    w = w.reshape(taps[0], spread[0], taps[1], spread[1], *w.shape[2:])
    w = jnp.flip(w, (1, 3)).transpose(0, 2, 4, 1, 3, 5)
    y = plain(x, w.reshape(*taps, x.shape[3], -1), (edges[0], edges[1]))
    return _interleave(y.reshape(*y.shape[:3], math.prod(spread), -1), spread, size)


def _measure(x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs) -> tuple[Pair, Pair]:
    """Return height and width of the result, and how many of its pixels are of one phase."""
    height, width = (
        (number - 1) * step + 1 + sum(edges) - side + 1
        for number, step, edges, side in zip(x.shape[1:3], spread, pads, w.shape, strict=False)
    )
    return (height, width), (math.ceil(height / spread[0]), math.ceil(width / spread[1]))


def _interleave(y: jax.Array, spread: Pair, size: Pair) -> jax.Array:
    """Return `[B, H, W, phase, C]` as an image of `size`."""
    batch, height, width, _, channels = y.shape
    y = y.reshape(batch, height, width, *spread, channels).transpose(0, 1, 3, 2, 4, 5)
    y = y.reshape(batch, height * spread[0], width * spread[1], channels)
    return y[:, : size[0], : size[1]]

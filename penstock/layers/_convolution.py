"""The convolution behind the layers, and where its kernel meets the image."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._program.frame import traced_once, widen
from penstock.layers.arguments import DataFormat, Pair, Pairs

# Each tap is a term of one compiled sum, which a few hundred would make slow to compile.
_MOST_TAPS = 121

# So many groups are joined that a convolution has so many channels, and that there are so few of
# them. 32 groups as 32, 16 and 8 lots: a step of ResNeXt-50 takes 3.16, 3.18 and 3.29 s, and is
# compiled in 22, 17 and 13 s.
_LEAST_CHANNELS = 16
_MOST_LOTS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Where the kernel meets the image; `spread` puts zeros between the pixels of the input."""

    strides: Pair = (1, 1)
    spread: Pair = (1, 1)
    dilations: Pair
    pads: Pairs
    groups: int

    @property
    def steps(self) -> tuple[Pair, Pair, Pairs]:
        return self.strides, self.dilations, self.pads


def convolve(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat, *, is_on_cpu: bool
) -> jax.Array:
    """Return the convolution of operands of one dtype.

    On CPU most kinds are computed another way; accelerators are given XLA's, or a product where the
    kernel covers the image.
    """
    # A kernel as large as the image is a matrix product, which XLA's CPU backend does not see: the
    # first dense layer of VGG, batch 8, takes 183 ms forward and backward as one, 951 otherwise.
    is_unpadded = geometry.pads == ((0, 0), (0, 0)) and geometry.spread == (1, 1)
    is_whole = data_format == "NHWC" and geometry.groups == 1 and x.shape[1:3] == w.shape[:2]
    if is_unpadded and is_whole:
        y = x.reshape(x.shape[0], -1) @ w.reshape(-1, w.shape[3])
        return y[:, None, None, :]
    if not is_on_cpu:
        return _convolve_on_xla(x, w, geometry, data_format)
    if geometry.spread == (1, 1):
        if geometry.groups > 1 and w.shape[2] == 1:
            # Joined, the channels of kernels so large are slower than one by one.
            is_small = math.prod(w.shape[:2]) <= _MOST_TAPS
            compute = _depthwise if is_small else _convolve_on_xla
            return compute(x, w, geometry, data_format)
        if w.shape[:2] == (1, 1) and geometry.groups == 1 and is_unpadded:
            return _pointwise(x, w, geometry, data_format)
    if geometry.groups > 1:
        return _convolve_in_lots(x, w, geometry, data_format)
    return _convolve_one_group(x, w, geometry, data_format)


def _convolve_on_xla(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> jax.Array:
    x, geometry = _pad_beyond_reach(x, w, geometry, data_format)
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=geometry.strides,
        padding=geometry.pads,
        lhs_dilation=geometry.spread,
        rhs_dilation=geometry.dilations,
        dimension_numbers=(data_format, "HWIO", data_format),
        feature_group_count=geometry.groups,
    )


def _convolve_in_lots(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> jax.Array:
    """Return the convolution of several groups, as plain ones of some of the groups each.

    For the gradient of the kernel XLA's CPU backend has a loop that is not compiled for speed: 16.7
    s instead of 0.05 for 128 channels in 32 groups, 56x56, batch 16.
    """
    groups, channels = geometry.groups, w.shape[2]
    lot = max(math.ceil(groups / _MOST_LOTS), math.ceil(_LEAST_CHANNELS / channels))
    # The last lot may have fewer.
    ends = range(lot, groups, lot)
    axis, filters = data_format.index("C"), w.shape[3] // groups
    images = jnp.split(x, [end * channels for end in ends], axis)
    kernels = jnp.split(w, [end * filters for end in ends], 3)
    how = (dataclasses.replace(geometry, groups=1), data_format, len(images))
    results = [
        _convolve_one_group(image, _join_groups(kernel, image.shape[axis] // channels), *how)
        for image, kernel in zip(images, kernels, strict=True)
    ]
    return jnp.concatenate(results, axis)


def _join_groups(w: jax.Array, groups: int) -> jax.Array:
    """Return the kernel of all channels, with zeros between those of different groups."""
    if groups == 1:
        return w
    height, width, channels, filters = w.shape
    by_group = w.reshape(height, width, 1, channels, groups, filters // groups)
    is_same = np.eye(groups, dtype=bool).reshape(1, 1, groups, 1, groups, 1)
    joined = jnp.where(is_same, by_group, jnp.zeros_like(by_group))
    return joined.reshape(height, width, groups * channels, filters)


def _convolve_one_group(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat, number: int = 1
) -> jax.Array:
    """Return a convolution of all channels on CPU, one of `number` that the program's is."""
    if geometry.spread == (1, 1):
        x, geometry = _pad_what_grows(x, w, geometry, data_format)
    elif geometry.dilations == (1, 1):
        x = _channels_last(x, data_format)
        y = _convolve_spread(x, w, geometry.spread, geometry.pads, number)
        return _channels_back(y, data_format)
    return _convolve_on_xla(x, w, geometry, data_format)


def _pad_what_grows(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> tuple[jax.Array, Geometry]:
    """Return the same convolution, with an image that is padded before if the result is larger.

    XLA's gradient of the kernel is by a slow loop for such a one: 2x2, a pixel of padding, 56x56x32
    to 32, batch 4: 34 ms, 1.8 so; 3x3 and two pixels, 112x112x32 to 64, batch 16: 7.1 s, 0.07 so.
    """
    edges = [(0, 0, 0)] * 4
    inner, first = list(geometry.pads), data_format.index("H")
    reach = measure_reach((w.shape[0], w.shape[1]), geometry.dilations)
    for axis, pad in enumerate(geometry.pads):
        if geometry.strides[axis] == 1 and sum(pad) >= reach[axis] and min(pad) >= 0:
            edges[first + axis], inner[axis] = (*pad, 0), (0, 0)
    if inner == list(geometry.pads):
        return x, geometry
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    return x, dataclasses.replace(geometry, pads=(inner[0], inner[1]))


def _pad_beyond_reach(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> tuple[jax.Array, Geometry]:
    """Return the same convolution without negative padding, in it and in its gradients.

    With that XLA's CPU backend reads beyond the image (openxla/xla#48713). The gradient of a
    convolution has it where padding is wider than the kernel reaches.
    """
    reach = measure_reach((w.shape[0], w.shape[1]), geometry.dilations)
    # What XLA may be given of the padding: less than the kernel reaches, and none below 0.
    (top, bottom), (left, right) = (
        (min(max(before, 0), r - 1), min(max(after, 0), r - 1))
        for (before, after), r in zip(geometry.pads, reach, strict=True)
    )
    inner = ((top, bottom), (left, right))
    if inner == geometry.pads:
        return x, geometry
    # The rest, by `lax.pad`: `(before, after, between)` for each axis, negative numbers cut off.
    edges = [(0, 0, 0)] * 4
    first = data_format.index("H")
    for axis, (pad, left_to_xla) in enumerate(zip(geometry.pads, inner, strict=True)):
        before, after = (p - q for p, q in zip(pad, left_to_xla, strict=True))
        edges[first + axis] = (before, after, geometry.spread[axis] - 1)
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    return x, dataclasses.replace(geometry, spread=(1, 1), pads=inner)


@traced_once("geometry", "data_format")
def _pointwise(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> jax.Array:
    """Return the convolution by a kernel of one pixel, as a matrix product.

    XLA sees the product too, and takes the gradient of the kernel, where the image's pixels are
    added up, for a convolution all the same.
    """
    first, steps = data_format.index("H"), [1] * 4
    steps[first : first + 2] = geometry.strides
    x = lax.slice(x, [0] * 4, x.shape, steps)
    x = _channels_last(x, data_format)
    # Of two axes: of four XLA would make a transposed copy for the gradient of the kernel, of all
    # that the gradient's operand is computed from: 77 ms instead of 12 in MobileNet's first.
    y = x.reshape(-1, x.shape[3]) @ w.reshape(w.shape[2:])
    return _channels_back(y.reshape(*x.shape[:3], w.shape[3]), data_format)


# Its gradients by taps are not what differentiating the sum would give: that takes 10 times longer.
# The price is no forward-mode differentiation (`jax.jvp`) on CPU, and 0.2 s more of compiling a
# layer.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _depthwise(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> jax.Array:
    y = _add_taps(_channels_last(x, data_format), w, *geometry.steps)
    return _channels_back(y, data_format)


def _depthwise_forward(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _depthwise(x, w, geometry, data_format), (x, w)


def _depthwise_backward(
    geometry: Geometry,
    data_format: DataFormat,
    operands: tuple[jax.Array, jax.Array],
    dy: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x, w = operands
    dy, x = (_channels_last(image, data_format) for image in (dy, x))
    dx = _image_gradient(dy, x, w, *geometry.steps)
    dw = _kernel_gradient(dy, x, w, *geometry.steps)
    return _channels_back(dx, data_format), dw


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _channels_last(x: jax.Array, data_format: DataFormat) -> jax.Array:
    return x if data_format == "NHWC" else jnp.moveaxis(x, 1, 3)


def _channels_back(x: jax.Array, data_format: DataFormat) -> jax.Array:
    return x if data_format == "NHWC" else jnp.moveaxis(x, 3, 1)


def measure_reach(kernel: Pair, dilations: Pair) -> Pair:
    """Return over how many pixels a dilated kernel spreads."""
    return (dilations[0] * (kernel[0] - 1) + 1, dilations[1] * (kernel[1] - 1) + 1)


# Single channels, as sums over the taps of their kernels: 16 ms of CPU time in place of the 180 of
# XLA's CPU backend, their gradients 50 in place of 1100 (3x3 on `[16, 56, 56, 128]`, two cores).
# Kernels are `[height, width, 1, C * multiplier]`; sums are taken in float32 or wider.


def _add_taps(x: jax.Array, w: jax.Array, strides: Pair, dilations: Pair, pads: Pairs) -> jax.Array:
    """Return the convolution, `[B, H', W', C * multiplier]`."""
    dtype = x.dtype
    # Padded once for all taps, each of which is then a slice.
    x, w = _pad(_repeat_channels(widen(x), w), pads), widen(w)
    reach = measure_reach((w.shape[0], w.shape[1]), dilations)
    extents = [  # from the first pixel that a tap meets to the last
        (size - r) // s * s + 1 for size, r, s in zip(x.shape[1:3], reach, strides, strict=True)
    ]
    terms = []
    for row, column in np.ndindex(*w.shape[:2]):
        top, left = row * dilations[0], column * dilations[1]
        ends = (x.shape[0], top + extents[0], left + extents[1], x.shape[3])
        shifted = lax.slice(x, (0, top, left, 0), ends, (1, *strides, 1))
        # `[1, 1, 1, C]` against `[B, H', W', C]`.
        terms.append(shifted * w[row : row + 1, column : column + 1])
    return sum(terms[1:], terms[0]).astype(dtype)


def _image_gradient(
    dy: jax.Array, x: jax.Array, w: jax.Array, strides: Pair, dilations: Pair, pads: Pairs
) -> jax.Array:
    """Return the image's gradient: `dy`, with zeros between, convolved by the turned kernel."""
    edges = []
    for axis, reach in enumerate(measure_reach((w.shape[0], w.shape[1]), dilations)):
        spread = (dy.shape[axis + 1] - 1) * strides[axis] + 1
        before = reach - 1 - pads[axis][0]
        after = x.shape[axis + 1] + reach - 1 - before - spread
        # So that the result has the image's size: `after` takes what the strides left over.
        edges.append((before, after, strides[axis] - 1))
    spread = lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    turned = jnp.flip(w, (0, 1))
    # Each filter's share; those of one channel are summed below.
    dx = _add_taps(spread, turned, (1, 1), dilations, ((0, 0), (0, 0)))
    return jnp.sum(dx.reshape(*x.shape, -1), axis=-1, dtype=x.dtype)


def _kernel_gradient(
    dy: jax.Array, x: jax.Array, w: jax.Array, strides: Pair, dilations: Pair, pads: Pairs
) -> jax.Array:
    """Return the gradient of the kernel `w`, given that of its convolution with `x`.

    Row by row, then column by column: XLA sums one array over all axes but the last 5 to 15 times
    slower. Examples are added up last and of all taps together, in one message between devices.
    """
    dy, x = widen(dy), _pad(_repeat_channels(widen(x), w), pads)
    batch_size, height, width, channels = dy.shape
    # What one tap sees of a row, before the strides.
    window = (batch_size, 1, (width - 1) * strides[1] + 1, channels)

    def differentiate_tap(corner: jax.Array) -> jax.Array:
        def take_row(row: jax.Array) -> jax.Array:
            row = jnp.asarray(row)  # an int with `jax.disable_jit`
            # As wide as JAX's count of the rows, which is int64 with `jax_enable_x64`.
            first, column = corner.astype(row.dtype)
            zero = jnp.zeros_like(row)
            seen = lax.dynamic_slice(x, (zero, first + row * strides[0], column, zero), window)
            at = lax.dynamic_index_in_dim(dy, row, 1, keepdims=False)
            return seen[:, 0, :: strides[1]] * at

        rows = _add_up(take_row, height)
        return _add_up(lambda column: lax.dynamic_index_in_dim(rows, column, 1, False), width)

    # A map over taps: their number would otherwise multiply the program's length.
    corners = np.array(list(np.ndindex(*w.shape[:2]))) * np.array(dilations)
    dw = jnp.sum(lax.map(differentiate_tap, jnp.asarray(corners, jnp.int32)), axis=1)
    return dw.reshape(w.shape).astype(w.dtype)


def _add_up(term: Callable[[jax.Array], jax.Array], count: int) -> jax.Array:
    first = term(jnp.asarray(0))
    return lax.fori_loop(1, count, lambda number, total: total + term(number), first, unroll=2)


def _repeat_channels(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.repeat(x, w.shape[3] // x.shape[3], axis=3)


def _pad(x: jax.Array, pads: Pairs) -> jax.Array:
    # Negative padding cuts.
    edges = [(0, 0, 0), *((*pad, 0) for pad in pads), (0, 0, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), edges)


# Images with zeros between their pixels, as convolutions of the images alone. XLA's CPU backend
# computes the gradient of the kernel of a spread image by a loop that is not compiled for speed:
# 4x4 to 64, stride 2, on 56x56x64, batch 16, two cores: 6200 ms, in phases 63, joined 100. A stride
# of 8 has 64 phases, which take 8 times as long to compile.
_MOST_PHASES = 9


def _convolve_spread(
    x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs, number: int
) -> jax.Array:
    """Return the convolution of a spread image `[B, H, W, C]`, one of `number` in a program."""
    # Phases that no pixel of the kernel meets are zeros, and no convolutions.
    num_phases = math.prod(map(min, spread, w.shape[:2]))
    compute = _in_phases if num_phases * number <= _MOST_PHASES else _joined
    return compute(x, w, spread, pads)


def _convolve_plainly(x: jax.Array, w: jax.Array, pads: Pairs) -> jax.Array:
    return _convolve_one_group(x, w, Geometry(dilations=(1, 1), pads=pads, groups=1), "NHWC")


def _in_phases(x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs) -> jax.Array:
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
            phases.append(_convolve_plainly(x, kernel, (edges[0], edges[1])))
    y = jnp.stack(phases, 3)
    return _interleave(y, spread, size)


def _joined(x: jax.Array, w: jax.Array, spread: Pair, pads: Pairs) -> jax.Array:
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
    y = _convolve_plainly(x, w.reshape(*taps, x.shape[3], -1), (edges[0], edges[1]))
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

"""The convolution behind the layers, and where its kernel meets the image."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.layers import _shift_and_add as shift_and_add
from penstock.layers import _spread_convolution as spread_convolution
from penstock.layers import arguments
from penstock.layers.arguments import DataFormat, Pair, Pairs

# Each tap is a term of one compiled sum, which a few hundred would make slow to compile.
_MOST_TAPS = 121

# So many groups are joined that a convolution has so many channels, and that there are so few of
# them. Forward, gradient of the kernel and of the image, ms, 32 groups, 3x3, batch 16, by 32, 16
# and 8 lots: 56x56x128: 64 50 96, 36 48 53, 21 48 20; 28x28x256: 15 18 29, 11 16 18, 11 35 12;
# 14x14x512: 6 10 13, 8 11 11, 10 16 11. A step of ResNeXt-50: 3.16, 3.18 and 3.29 s; compiled in
# 22, 17 and 13 s.
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
        """Strides, dilations and padding."""
        return self.strides, self.dilations, self.pads


def convolve(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat, *, is_on_cpu: bool
) -> jax.Array:
    """Return the convolution of operands of one dtype.

    On CPU those by one pixel, of single channels, of groups, of spread images and with a result
    larger than the image are computed another way; accelerators are given XLA's convolution, or a
    product where the kernel covers the image.
    """
    # A kernel as large as the image is a matrix product, which XLA's CPU backend does not see: the
    # first dense layer of VGG, batch 8, takes 183 ms forward and backward as one, 951 otherwise.
    if _is_product(x, w, geometry, data_format):
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
        if w.shape[:2] == (1, 1) and geometry.groups == 1 and geometry.pads == ((0, 0), (0, 0)):
            return _pointwise(x, w, geometry, data_format)
    if geometry.groups > 1:
        return _convolve_in_lots(x, w, geometry, data_format)
    return _convolve_one_group(x, w, geometry, data_format)


def _is_product(x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat) -> bool:
    return (
        data_format == "NHWC"
        and geometry.groups == 1
        and geometry.spread == (1, 1)
        and geometry.pads == ((0, 0), (0, 0))
        and x.shape[1:3] == w.shape[:2]
    )


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
    one_group = functools.partial(
        _convolve_one_group, geometry=dataclasses.replace(geometry, groups=1), number=len(images)
    )
    results = [
        one_group(
            image, _join_groups(kernel, image.shape[axis] // channels), data_format=data_format
        )
        for image, kernel in zip(images, kernels, strict=True)
    ]
    return jnp.concatenate(results, axis)


def _join_groups(w: jax.Array, groups: int) -> jax.Array:
    """Return the kernel of all channels that has zeros between those of different groups.

    An infinite pixel makes all filters of a lot nan: infinity times zero.
    """
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
    """Return a convolution of all channels, on CPU.

    Arguments:
      number: of how many such ones the program's convolution is made.
    """

    def plain(x: jax.Array, w: jax.Array, pads: Pairs) -> jax.Array:
        return _convolve_one_group(x, w, Geometry(dilations=(1, 1), pads=pads, groups=1), "NHWC")

    if geometry.spread == (1, 1):
        x, geometry = _pad_what_grows(x, w, geometry, data_format)
    elif geometry.dilations == (1, 1):
        x = _channels_last(x, data_format)
        y = spread_convolution.convolve(x, w, geometry.spread, geometry.pads, plain, number)
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
    y = x.reshape(-1, x.shape[3]) @ w[0, 0]
    return _channels_back(y.reshape(*x.shape[:3], w.shape[3]), data_format)


# Its gradients by taps are not what differentiating the sum would give: that takes 10 times longer.
# The price is no forward-mode differentiation (`jax.jvp`) on CPU, and 0.2 s more of compiling a
# layer.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _depthwise(
    x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat
) -> jax.Array:
    """Return the convolution of each channel, by taps."""
    y = shift_and_add.convolve(_channels_last(x, data_format), w, *geometry.steps)
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
    dy, x = (_channels_last(each, data_format) for each in (dy, x))
    dx = shift_and_add.image_gradient(dy, x, w, *geometry.steps)
    dw = shift_and_add.kernel_gradient(dy, x, w, *geometry.steps)
    return _channels_back(dx, data_format), dw


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _channels_last(x: jax.Array, data_format: DataFormat) -> jax.Array:
    return x if data_format == "NHWC" else jnp.moveaxis(x, 1, 3)


def _channels_back(x: jax.Array, data_format: DataFormat) -> jax.Array:
    return x if data_format == "NHWC" else jnp.moveaxis(x, 3, 1)


def as_steps(
    layer: str, stride: int | Sequence[int], dilation: int | Sequence[int]
) -> tuple[Pair, Pair]:
    """Return stride and dilation as pairs."""
    return (
        arguments.as_pair(layer, "stride", stride, 1),
        arguments.as_pair(layer, "dilation", dilation, 1),
    )


def measure_reach(kernel: Pair, dilations: Pair) -> Pair:
    """Return over how many pixels a dilated kernel spreads."""
    return (dilations[0] * (kernel[0] - 1) + 1, dilations[1] * (kernel[1] - 1) + 1)

"""Ways to compute a convolution, or its gradient, from matrix products and slices.

`benchmarks.convolutions` compares them with XLA's convolution. Those that penstock uses are in
`penstock/layers/_convolution.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Pair = tuple[int, int]
Form = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
    """A `lax.conv_general_dilated` over two axes, as it stands in a traced program.

    Its gradients are such convolutions too: that of the kernel has a window as large as the image,
    and a result as small as the kernel.
    """

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def read(cls, equation: Any) -> Convolution:
        """Return that of an equation of a jaxpr."""
        names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
        names += ("feature_group_count", "batch_group_count")
        lhs, rhs = (each.aval.shape for each in equation.invars)
        options = tuple((name, equation.params[name]) for name in names)
        return cls(lhs=lhs, rhs=rhs, out=equation.outvars[0].aval.shape, options=options)

    def __getattr__(self, name: str) -> Any:
        options = dict(object.__getattribute__(self, "options"))
        if name not in options:
            raise AttributeError(name)
        return options[name]

    @property
    def kernel(self) -> Pair:
        """Height and width of the window."""
        spec = self.dimension_numbers.rhs_spec
        return self.rhs[spec[2]], self.rhs[spec[3]]

    @property
    def output(self) -> Pair:
        """Height and width of the result."""
        spec = self.dimension_numbers.out_spec
        return self.out[spec[2]], self.out[spec[3]]

    @property
    def is_grouped(self) -> bool:
        """Whether outputs read a part of the features or of the examples."""
        return self.feature_group_count > 1 or self.batch_group_count > 1

    @property
    def is_spread(self) -> bool:
        """Whether there are zeros between the image's pixels."""
        return self.lhs_dilation != (1, 1)

    def compute(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """Return what XLA's convolution gives."""
        return lax.conv_general_dilated(lhs, rhs, **dict(self.options))


def forms(conv: Convolution) -> dict[str, Form]:
    """Return the ways, by name, to compute a convolution without XLA's convolution."""
    found: dict[str, Callable[..., jax.Array]] = {}
    pixels, results = math.prod(conv.kernel), math.prod(conv.output)
    if conv.is_grouped:
        return {}
    found["first"] = _channels_first
    if not conv.is_spread and any(map(any, conv.padding)):
        found["padded"] = _padded
    if conv.is_spread:
        if pixels == 1 and conv.window_strides == (1, 1):
            found["taps"] = _then_spread
        elif conv.window_strides == conv.rhs_dilation == (1, 1):
            found["phases"] = _by_phases
    elif pixels <= 49:
        found["taps"] = _by_taps
        if pixels > 1:
            found["im2col"] = functools.partial(_by_taps, joined=pixels)
    elif results <= 49:
        found["taps"] = _by_outputs
        if results > 1:
            found["im2col"] = functools.partial(_by_outputs, joined=results)
    return {name: functools.partial(form, conv) for name, form in found.items()}


def _channels_first(conv: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return the convolution of operands that are turned, features before height and width."""
    numbers = conv.dimension_numbers
    options = {**dict(conv.options), "dimension_numbers": ("NCHW", "OIHW", "NCHW")}
    lhs, rhs = lhs.transpose(numbers.lhs_spec), rhs.transpose(numbers.rhs_spec)
    return _arrange(lax.conv_general_dilated(lhs, rhs, **options), numbers.out_spec)


def _padded(conv: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return the convolution without padding of an image that is padded before."""
    options = {**dict(conv.options), "padding": "VALID"}
    return lax.conv_general_dilated(_pad(lhs, conv), rhs, **options)


def _by_taps(conv: Convolution, lhs: jax.Array, rhs: jax.Array, joined: int = 1) -> jax.Array:
    """Return the sum of a product for each pixel of the kernel, or for several joined."""
    numbers = conv.dimension_numbers
    image, kernel = numbers.lhs_spec, numbers.rhs_spec
    lhs = _pad(lhs, conv)
    parts = []
    for pixel in itertools.product(*map(range, conv.kernel)):
        first = [p * d for p, d in zip(pixel, conv.rhs_dilation, strict=True)]
        x = _cut(lhs, image, first, conv.output, conv.window_strides)
        index: list[slice | int] = [slice(None)] * 4
        index[kernel[2]], index[kernel[3]] = pixel
        parts.append((x, rhs[tuple(index)]))
    features = 0 if kernel[1] < kernel[0] else 1
    total: Any = 0.0
    for some in _in_lots(parts, joined):
        x = jnp.concatenate([x for x, _ in some], image[1])
        w = jnp.concatenate([w for _, w in some], features)
        total = total + lax.dot_general(x, w, (((image[1],), (features,)), ((), ())))
    # The axes of the image but its features, in their order, and then the outputs.
    names = [image.index(axis) for axis in range(4) if axis != image[1]] + [1]
    return _arrange(total, [numbers.out_spec[name] for name in names])


def _by_outputs(conv: Convolution, lhs: jax.Array, rhs: jax.Array, joined: int = 1) -> jax.Array:
    """Return a product over the whole window for each pixel of the result, or for several."""
    numbers = conv.dimension_numbers
    image, kernel, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    lhs = _pad(lhs, conv)
    parts = []
    for pixel in itertools.product(*map(range, conv.output)):
        first = [p * s for p, s in zip(pixel, conv.window_strides, strict=True)]
        parts.append(_cut(lhs, image, first, conv.kernel, conv.rhs_dilation))
    pairs = sorted(zip(image[1:], kernel[1:], strict=True))
    contracted = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
    rows = [
        lax.dot_general(jnp.concatenate(some, image[0]), rhs, (contracted, ((), ())))
        for some in _in_lots(parts, joined)
    ]
    outputs = rhs.shape[kernel[0]]
    result = jnp.concatenate(rows).reshape(*conv.output, lhs.shape[image[0]], outputs)
    return _arrange(result, [out[2], out[3], out[0], out[1]])


def _then_spread(conv: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return a product by a kernel of one pixel, with the zeros put between its pixels."""
    image, out = conv.dimension_numbers.lhs_spec, conv.dimension_numbers.out_spec
    shape, edges = list(conv.out), [(0, 0, 0)] * 4
    for axis in (0, 1):
        shape[out[2 + axis]] = lhs.shape[image[2 + axis]]
        edges[out[2 + axis]] = (*conv.padding[axis], conv.lhs_dilation[axis] - 1)
    options = {**dict(conv.options), "lhs_dilation": (1, 1), "padding": ((0, 0), (0, 0))}
    plain = Convolution(
        lhs=conv.lhs, rhs=conv.rhs, out=tuple(shape), options=tuple(options.items())
    )
    y = _by_taps(plain, lhs, rhs)
    return lax.pad(y, jnp.zeros((), y.dtype), edges)


def _by_phases(conv: Convolution, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return a convolution of a spread image as several of the image itself, interleaved.

    Of neighbours in the result each meets other pixels of the kernel, and no zeros.
    """
    numbers, steps = conv.dimension_numbers, conv.lhs_dilation
    image, kernel, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    size = [math.ceil(o / s) for o, s in zip(conv.output, steps, strict=True)]
    phases = []
    for phase in itertools.product(*map(range, steps)):
        index: list[slice] = [slice(None)] * 4
        pads = [(0, 0, 0)] * 4
        for axis in (0, 1):
            before, step = conv.padding[axis][0] - phase[axis], steps[axis]
            tap = before % step
            number = len(range(tap, conv.kernel[axis], step))
            low = (before - tap) // step
            high = size[axis] + number - 1 - lhs.shape[image[2 + axis]] - low
            index[kernel[2 + axis]] = slice(tap, None, step)
            pads[image[2 + axis]] = (low, high, 0)
        w = rhs[tuple(index)]
        shape = list(conv.out)
        shape[out[2]], shape[out[3]] = size
        if 0 in w.shape:
            phases.append(jnp.zeros(shape, lhs.dtype))
        else:
            x = lax.pad(lhs, jnp.zeros((), lhs.dtype), pads)
            phases.append(
                lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers)
            )
    y = jnp.stack(phases).reshape(*steps, *phases[0].shape)
    order: list[int] = []
    for axis in range(4):
        order.append(axis + 2)
        if axis in out[2:]:
            order.append(out[2:].index(axis))
    full = list(phases[0].shape)
    for axis, step in zip(out[2:], steps, strict=True):
        full[axis] *= step
    return lax.slice(y.transpose(order).reshape(full), [0] * 4, conv.out)


def _pad(lhs: jax.Array, conv: Convolution) -> jax.Array:
    edges = [(0, 0, 0)] * 4
    for axis, pads in zip(conv.dimension_numbers.lhs_spec[2:], conv.padding, strict=True):
        edges[axis] = (*pads, 0)
    return lax.pad(lhs, jnp.zeros((), lhs.dtype), edges)


def _cut(
    lhs: jax.Array, spec: Sequence[int], first: Sequence[int], size: Pair, steps: Pair
) -> jax.Array:
    start, stop, step = [0] * 4, list(lhs.shape), [1] * 4
    for axis, begin, number, stride in zip(spec[2:], first, size, steps, strict=True):
        start[axis], step[axis] = begin, stride
        stop[axis] = begin + (number - 1) * stride + 1
    return lax.slice(lhs, start, stop, step)


def _arrange(y: jax.Array, places: Sequence[int]) -> jax.Array:
    return lax.transpose(y, [list(places).index(axis) for axis in range(4)])


def _in_lots(parts: Sequence[Any], number: int) -> list[Any]:
    return [parts[i : i + number] for i in range(0, len(parts), number)]

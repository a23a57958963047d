"""Checks and conversions of arguments that several layers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError, check_choice

DataFormat = Literal["NHWC", "NCHW"]
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
Pair = tuple[int, int]
Pairs = tuple[Pair, Pair]


def as_pair(layer: str, argument: str, value: int | Sequence[int], least: int) -> Pair:
    """Return `(height, width)` for a number or a pair of numbers of at least `least`."""
    pair = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(pair) != 2 or not all(isinstance(v, (int, np.integer)) and v >= least for v in pair):
        raise ProgramError(
            f"layers.{layer} got {argument}={value!r}, expected an integer of at least {least} or "
            "a pair of them. One number stands for height and width. Give (height, width) for two."
        )
    return int(pair[0]), int(pair[1])


def as_padding(
    layer: str,
    argument: str,
    value: Padding,
    sizes: Pair,
    windows: Pair,
    strides: Pair,
) -> Pairs:
    """Return `((top, bottom), (left, right))` for every accepted form of padding."""
    if isinstance(value, str):
        # Keras and torch write it in small letters.
        check_choice(f"layers.{layer} got {argument}=", value.upper(), ("SAME", "VALID"))
        if value.upper() == "VALID":
            return ((0, 0), (0, 0))
        both = [_same(*axis) for axis in zip(sizes, windows, strides, strict=True)]
        return (both[0], both[1])
    # A pair of pairs; a pair of numbers goes on below.
    if isinstance(value, Iterable) and all(isinstance(side, Sequence) for side in value):
        sides = [as_pair(layer, argument, side, 0) for side in value]  # pyright: ignore[reportArgumentType]
        if len(sides) == 2:
            return (sides[0], sides[1])
    vertical, horizontal = as_pair(layer, argument, value, 0)  # pyright: ignore[reportArgumentType]
    return ((vertical, vertical), (horizontal, horizontal))


def _same(size: int, window: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    # The odd pixel below and to the right, as TensorFlow has it.
    return total // 2, total - total // 2


Axes = Sequence[Any]
"""`["B", "T", 8]`: a letter stands for any size, a number for itself, `...` for any axes."""


def check_shape(thing: str, value: jax.Array, why: str, *forms: Axes) -> None:
    """Raise unless an array has the axes of one of the forms.

    >>> check_shape("layers.topk got values", jnp.ones([2, 8]), "...", ["B", 8], ["B", ..., "D"])
    """
    if not any(_has_axes(value.shape, list(axes)) for axes in forms):
        shown = [", ".join("..." if size is ... else str(size) for size in axes) for axes in forms]
        expected = " or ".join(f"[{axes}]" for axes in shown)
        raise ProgramError(f"{thing} of shape {value.shape}, expected {expected}. {why}")


def _has_axes(shape: Sequence[int], axes: Axes) -> bool:
    for place, size in enumerate(axes):
        if size is ...:
            num_more = len(shape) - (len(axes) - 1)
            axes = [*axes[:place], *["any"] * num_more, *axes[place + 1 :]]
    return len(shape) == len(axes) and all(
        isinstance(size, str) or size == actual for size, actual in zip(axes, shape, strict=True)
    )


def check_divisor(thing: str, value: int, total: int, why: str) -> None:
    """Raise unless a number divides another, such as the heads the features."""
    if value < 1 or total % value:
        raise ProgramError(f"{thing}{value}, expected a divisor of {total}. {why}")


def check_image(layer: str, input: jax.Array, data_format: str) -> tuple[int, Pair]:
    """Return the number of channels and (height, width) of a batch of images."""
    check_choice(f"layers.{layer} got data_format=", data_format, ("NHWC", "NCHW"))
    # Errors and docstrings call the batch axis B.
    axes = data_format.replace("N", "B")
    why = "Images have height, width and channels. Declare the input with 3 sizes, or reshape it."
    check_shape(f"layers.{layer} got an input", input, why, axes)
    height, width = (1, 2) if data_format == "NHWC" else (2, 3)
    channels = input.shape[channel_axis(input, data_format)]
    return channels, (input.shape[height], input.shape[width])


def check_fits(layer: str, input: jax.Array, sizes: Pair, windows: Pair, pads: Pairs) -> None:
    """Raise unless at least one window fits into the padded image."""
    if any(size + sum(p) < window for size, p, window in zip(sizes, pads, windows, strict=True)):
        raise ProgramError(
            f"layers.{layer} got an input of shape {input.shape} and padding {pads}, expected a "
            f"padded height and width of at least {windows}, the reach of the window. Nothing "
            "would be left. Use a smaller window, more padding or larger images."
        )


def channel_axis(input: jax.Array, data_format: str) -> int:
    """Return the axis of the channels, whatever the number of axes."""
    return 1 if data_format == "NCHW" else input.ndim - 1


def integers(layer: str, what: str, value: jax.Array) -> jax.Array:
    """Return `value` signed, in int32 or wider, raising unless its dtype is an integer."""
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise ProgramError(
            f"layers.{layer} got {what} of dtype {value.dtype}, expected integers. They number "
            'or count. Declare the input with layers.data(..., dtype="int32").'
        )
    value = widen_bytes(value)
    # What lies before the first, such as -1, would be the largest number.
    return value if jnp.issubdtype(value.dtype, jnp.signedinteger) else value.astype(int)


def widen_bytes(value: jax.Array) -> jax.Array:
    """Return integers of one or two bytes in int32, and others as they are."""
    # In a byte JAX wraps what a label is compared with: 156 would be -100, which is ignored.
    is_short = jnp.issubdtype(value.dtype, jnp.integer) and value.dtype.itemsize < 4
    return value.astype(jnp.int32) if is_short else value

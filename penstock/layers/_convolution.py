"""The convolution behind the layers, and where its kernel meets the image."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from jax import lax

from penstock.layers import _arguments
from penstock.layers._arguments import DataFormat, Pair, Pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Where the kernel meets the image; `spread` puts zeros between the pixels of the input."""

    strides: Pair = (1, 1)
    spread: Pair = (1, 1)
    dilations: Pair
    pads: Pairs
    groups: int


def convolve(x: jax.Array, w: jax.Array, geometry: Geometry, data_format: DataFormat) -> jax.Array:
    """Return the convolution of operands of one dtype."""
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


def as_steps(
    layer: str, stride: int | Sequence[int], dilation: int | Sequence[int]
) -> tuple[Pair, Pair]:
    """Return stride and dilation as pairs."""
    return (
        _arguments.as_pair(layer, "stride", stride, 1),
        _arguments.as_pair(layer, "dilation", dilation, 1),
    )


def reach_of(kernel: Pair, dilations: Pair) -> Pair:
    """Return over how many pixels a dilated kernel spreads."""
    return (dilations[0] * (kernel[0] - 1) + 1, dilations[1] * (kernel[1] - 1) + 1)

"""MobileNet v3 (Howard et al. 2019), from TF-Slim's mobilenet_v3.py."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import jax

from penstock import layers
from penstock.layers.activations import Activation
from penstock.models import _mobilenet
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import classify_in_scope


class Row(NamedTuple):
    """A row of table 1 or 2 of the paper."""

    size: int
    width: int
    depth: int
    has_squeeze: bool
    act: Activation
    stride: int


class Variant(NamedTuple):
    """The bottlenecks of one network, and the widths of the two 1x1 convolutions behind them."""

    rows: tuple[Row, ...]
    last_widths: tuple[int, int]
    act: Activation = "hard_swish"


LARGE = Variant(
    (
        Row(3, 16, 16, False, "relu", 1),
        Row(3, 64, 24, False, "relu", 2),
        Row(3, 72, 24, False, "relu", 1),
        Row(5, 72, 40, True, "relu", 2),
        *[Row(5, 120, 40, True, "relu", 1)] * 2,
        Row(3, 240, 80, False, "hard_swish", 2),
        Row(3, 200, 80, False, "hard_swish", 1),
        *[Row(3, 184, 80, False, "hard_swish", 1)] * 2,
        Row(3, 480, 112, True, "hard_swish", 1),
        Row(3, 672, 112, True, "hard_swish", 1),
        Row(5, 672, 160, True, "hard_swish", 2),
        *[Row(5, 960, 160, True, "hard_swish", 1)] * 2,
    ),
    (960, 1280),
)
SMALL = Variant(
    (
        Row(3, 16, 16, True, "relu", 2),
        Row(3, 72, 24, False, "relu", 2),
        Row(3, 88, 24, False, "relu", 1),
        Row(5, 96, 40, True, "hard_swish", 2),
        *[Row(5, 240, 40, True, "hard_swish", 1)] * 2,
        Row(5, 120, 48, True, "hard_swish", 1),
        Row(5, 144, 48, True, "hard_swish", 1),
        Row(5, 288, 96, True, "hard_swish", 2),
        *[Row(5, 576, 96, True, "hard_swish", 1)] * 2,
    ),
    (576, 1024),
)


def minimalistic(variant: Variant) -> Variant:
    """Return a variant without squeeze-and-excite, hard swish and kernels of 5x5."""
    rows = tuple(row._replace(size=3, has_squeeze=False, act="relu") for row in variant.rows)
    return variant._replace(rows=rows, act="relu")


VARIANTS = {
    "mobilenet_v3_large": LARGE,
    "mobilenet_v3_small": SMALL,
    "mobilenet_v3_large_minimalistic": minimalistic(LARGE),
    "mobilenet_v3_small_minimalistic": minimalistic(SMALL),
}


def mobilenet_v3(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    variant: Variant,
    gate_slope: float = _mobilenet.GATE_SLOPE,
) -> Outputs:
    """Build MobileNet v3: a convolution, inverted residual bottlenecks, two 1x1, logits.

    Arguments:
      gate_slope: the slope of squeeze-and-excite's gates, which are `gate_slope * relu6(x + 3)`.
    """
    style = _mobilenet.make_style(settings, variant.act)
    points: EndPoints = {}
    net = points["layer_1"] = style.conv(images, 16, 3, stride=2, name="Conv")
    for number, row in enumerate(variant.rows):
        shape = _mobilenet.Bottleneck(
            width=row.width,
            depth=row.depth,
            stride=row.stride,
            size=row.size,
            squeeze_width=_mobilenet.round_to_multiple(row.width / 4) if row.has_squeeze else None,
            gate_slope=gate_slope,
        )
        name = _mobilenet.name_bottleneck(number)
        inner = replace(style, act=row.act)
        net = _mobilenet.bottleneck(
            net, shape, inner, points, name=name, point=f"layer_{number + 2}"
        )
    number = len(variant.rows) + 2
    wide, wider = variant.last_widths
    net = points[f"layer_{number}"] = style.conv(net, wide, 1, name="Conv_1")
    net = points[f"layer_{number + 1}"] = layers.pool2d(net, pool_type="avg", global_pooling=True)
    # The last 1x1 sees pooled features and has no batch norm.
    plain = replace(style, is_normalized=False)
    net = points[f"layer_{number + 2}"] = plain.conv(net, wider, 1, name="Conv_2")
    return classify_in_scope(net, num_classes, style, points, name="Conv2d_1c_1x1")


MODELS = tuple(
    replace(
        slim_model(
            name, functools.partial(mobilenet_v3, variant=variant), 224, _mobilenet.SETTINGS
        ),
        source="TF-Slim's mobilenet_v3." + name.removeprefix("mobilenet_v3_"),
    )
    for name, variant in VARIANTS.items()
)

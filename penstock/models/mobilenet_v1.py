"""MobileNet v1 (Howard et al. 2017), from TF-Slim's mobilenet_v1.py."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax

from penstock.models._mobilenet import SETTINGS, make_style
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import classify_in_scope

# Depth and stride: of a convolution, then of pairs of a depthwise one, which strides, and a 1x1.
LAYERS = (
    (32, 2),
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)


def mobilenet_v1(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    depth_multiplier: float = 1.0,
) -> Outputs:
    """Build MobileNet v1: a convolution, thirteen depthwise separable ones, logits.

    Arguments:
      depth_multiplier: scales the channels of every layer; no layer has fewer than 8.
    """
    style = make_style(settings, "relu6")
    points: EndPoints = {}
    net = images
    for number, (depth, stride) in enumerate(LAYERS):
        depth, name = max(int(depth * depth_multiplier), 8), f"Conv2d_{number}"
        if number == 0:
            net = points[name] = style.conv(net, depth, 3, stride=stride, name=name)
            continue
        depthwise, pointwise = f"{name}_depthwise", f"{name}_pointwise"
        net = points[depthwise] = style.depthwise(net, 3, stride=stride, name=depthwise)
        net = points[pointwise] = style.conv(net, depth, 1, name=pointwise)
    return classify_in_scope(
        net, num_classes, style, points, name="Conv2d_1c_1x1", pooled="AvgPool_1a"
    )


MODELS = tuple(
    slim_model(
        f"mobilenet_v1{suffix}",
        functools.partial(mobilenet_v1, depth_multiplier=depth_multiplier),
        224,
        replace(SETTINGS, batch_norm_decay=0.9997, dropout=0.001),
    )
    for suffix, depth_multiplier in (("", 1.0), ("_075", 0.75), ("_050", 0.5), ("_025", 0.25))
)

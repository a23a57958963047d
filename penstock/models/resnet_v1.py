"""ResNet v1 (He et al. 2015) as TF-Slim has it, which strides in the last unit of a block."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax

from penstock.models._heads import classify
from penstock.models._registry import EndPoints, Outputs, slim_model
from penstock.models._residual import NUM_UNITS, SLIM_SETTINGS, plan_blocks, subsample
from penstock.models._settings import Settings
from penstock.models._style import Style, max_pool, scope, variance_scaling


def resnet_v1(
    images: jax.Array, num_classes: int | None, *, settings: Settings, num_units: Sequence[int]
) -> Outputs:
    """Build ResNet v1: each unit adds its bottleneck to its input, and then applies ReLU.

    Arguments:
      num_units: number of units in each of the four blocks.
    """
    style = Style(settings=settings, weights=variance_scaling(), has_scale=True)
    points: EndPoints = {}
    net = points["conv1"] = style.conv(images, 64, 7, stride=2, padding=3, name="conv1")
    net = points["pool1"] = max_pool(net, 3, 2, "SAME")
    for block, width, strides in plan_blocks(num_units, strided="last"):
        with scope(block):
            for number, stride in enumerate(strides, 1):
                with scope(f"unit_{number}"), scope("bottleneck_v1"):
                    net = _bottleneck(style, net, width, stride)
                points[f"{block}/unit_{number}/bottleneck_v1"] = net
        points[block] = net
    return classify(net, num_classes, style=style, points=points)


def _bottleneck(style: Style, x: jax.Array, width: int, stride: int) -> jax.Array:
    depth = 4 * width
    if x.shape[-1] == depth:
        shortcut = subsample(x, stride)
    else:
        shortcut = replace(style, act=None).conv(x, depth, 1, stride=stride, name="shortcut")
    net = style.conv(x, width, 1, name="conv1")
    net = style.conv(net, width, 3, stride=stride, padding=1, name="conv2")
    net = style.linear(net, depth, 1, name="conv3")
    return jax.nn.relu(shortcut + net)


MODELS = tuple(
    slim_model(
        f"resnet_v1_{num_layers}",
        functools.partial(resnet_v1, num_units=num_units),
        224,
        SLIM_SETTINGS,
        preprocessing="vgg",
        num_classes=1000,
    )
    for num_layers, num_units in NUM_UNITS.items()
)

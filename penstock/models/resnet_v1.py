"""ResNet v1 (He et al. 2015) as TF-Slim has it, and what the other residual networks share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import jax

from penstock import layers
from penstock.layers.initializers import variance_scaling
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import Style, classify, max_pool, scope

NUM_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
"""Units in each of the four blocks of bottlenecks, by the number of layers."""

# Of TF-Slim's v1 and v2.
SLIM_SETTINGS = Settings(
    batch_norm_decay=0.997,
    batch_norm_epsilon=1e-5,
    unbiased_running_variance=True,
    weight_decay=1e-4,
)


def plan_blocks(
    num_units: Sequence[int], strided: Literal["first", "last"]
) -> list[tuple[str, int, list[int]]]:
    """Return each block's name, the width of its bottlenecks, and the strides of its units.

    Arguments:
      strided: which units halve the image: the last of each of the first three blocks, as in
        TF-Slim, or the first of each of the last three.

    >>> plan_blocks((1, 2, 1, 1), strided="last")[1]
    ('block2', 128, [1, 2])
    """
    blocks = []
    for number, count in enumerate(num_units, 1):
        strides = [1] * count
        if strided == "last" and number < len(num_units):
            strides[-1] = 2
        if strided == "first" and number > 1:
            strides[0] = 2
        blocks.append((f"block{number}", 32 * 2**number, strides))
    return blocks


def subsample(x: jax.Array, stride: int) -> jax.Array:
    """Return every `stride`-th pixel of `[B, H, W, C]`."""
    if stride == 1:
        return x
    # XLA's CPU compiler makes one kernel of the units before a pooling: windows of one pixel take
    # ResNet's forward pass to 0.83 to 0.91 of its time in four measurements. The values are the
    # same. In training the pooling's gradient would cost 8 % of a step; a slice's costs nothing.
    if layers.is_training():
        return x[:, ::stride, ::stride]
    return max_pool(x, 1, stride)


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
        shortcut = style.linear.conv(x, depth, 1, stride=stride, name="shortcut")
    net = style.conv(x, width, 1, name="conv1")
    net = style.conv(net, width, 3, stride=stride, padding=1, name="conv2")
    net = style.linear.conv(net, depth, 1, name="conv3")
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

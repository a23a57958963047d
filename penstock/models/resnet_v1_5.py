"""ResNet-50 v1.5 and ResNeXt-50 (He et al. 2015, Xie et al. 2017) as torchvision has them.

OneFlow-Benchmark's two; v1.5 means that the 3x3 of a block's first unit strides.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
from jax.nn import initializers

from penstock.models._registry import EndPoints, Model, Outputs, Settings
from penstock.models._style import Style, classify, max_pool, scope
from penstock.models.resnet import NUM_UNITS, plan_blocks


def resnet_v1_5(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    num_units: Sequence[int] = NUM_UNITS[50],
    num_groups: int = 1,
    group_width: int = 64,
) -> Outputs:
    """Build ResNet v1.5: the unit that halves the image is a block's first.

    Arguments:
      num_units: number of units in each of the four blocks.
      num_groups: groups of each 3x3 convolution; 32 in ResNeXt-50.
      group_width: channels per group in the first block; 4 in ResNeXt-50.
    """
    he = initializers.variance_scaling(2.0, "fan_out", "normal")
    style = Style(settings=settings, weights=he, has_scale=True)
    points: EndPoints = {}
    net = points["conv1"] = style.conv(images, 64, 7, stride=2, padding=3, name="conv1")
    net = points["pool1"] = max_pool(net, 3, 2, 1)
    for block, base, strides in plan_blocks(num_units, strided="first"):
        width = base * group_width // 64 * num_groups
        with scope(block):
            for number, stride in enumerate(strides, 1):
                with scope(f"unit_{number}"):
                    net = _bottleneck(style, net, width, 4 * base, stride, num_groups)
                points[f"{block}/unit_{number}"] = net
        points[block] = net
    # Goyal et al. 2017; torchvision does not.
    dense = replace(style, weights=initializers.normal(0.01))
    return classify(net, num_classes, style=dense, points=points)


def _bottleneck(
    style: Style, x: jax.Array, width: int, depth: int, stride: int, num_groups: int
) -> jax.Array:
    shortcut = x
    if x.shape[-1] != depth:
        shortcut = style.linear.conv(x, depth, 1, stride=stride, name="shortcut")
    net = style.conv(x, width, 1, name="conv1")
    net = style.conv(net, width, 3, stride=stride, padding=1, groups=num_groups, name="conv2")
    # A scale of 0 lets a unit start as the identity (Goyal et al. 2017); torchvision does not.
    net = replace(style.linear, scales=initializers.zeros).conv(net, depth, 1, name="conv3")
    return jax.nn.relu(shortcut + net)


_SETTINGS = Settings(
    batch_norm_decay=0.9,
    batch_norm_epsilon=1e-5,
    unbiased_running_variance=True,
    weight_decay=1 / 32768,
)

MODELS = (
    Model(
        name="resnet50",
        function=resnet_v1_5,
        default_image_size=224,
        preprocessing="torchvision",
        settings=_SETTINGS,
        source="OneFlow-Benchmark's resnet50, torchvision's resnet50",
    ),
    Model(
        name="resnext50",
        function=functools.partial(resnet_v1_5, num_groups=32, group_width=4),
        default_image_size=224,
        preprocessing="torchvision",
        settings=_SETTINGS,
        source="OneFlow-Benchmark's resnext50, torchvision's resnext50_32x4d",
    ),
)

"""ResNet v1 and v2 (He et al. 2015, 2016) as TF-Slim and keras.applications have them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from penstock import layers
from penstock.layers.initializers import variance_scaling
from penstock.models._registry import EndPoints, Model, Outputs, Settings, slim_model
from penstock.models._style import Style, classify, max_pool, scope

NUM_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
"""Units in each of the four blocks of bottlenecks, by the number of layers."""


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
    net = _apply_blocks(net, num_units, style, points, "bottleneck_v1", _bottleneck_v1)
    return classify(net, num_classes, style=style, points=points)


def resnet_v2(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    num_units: Sequence[int],
    is_pool_padded: bool = False,
) -> Outputs:
    """Build ResNet v2: batch norm and ReLU come first in a unit, and once more at the end.

    Arguments:
      num_units: number of units in each of the four blocks.
      is_pool_padded: pad the input of the first pooling with zeros on each side, as Keras does,
        instead of TF-Slim's `"SAME"`, whose windows lie a pixel further right and down.
    """
    style = Style(settings=settings, weights=variance_scaling(), has_scale=True)
    points: EndPoints = {}
    net = points["conv1"] = style.plain.conv(images, 64, 7, stride=2, padding=3, name="conv1")
    if is_pool_padded:
        net = jnp.pad(net, ((0, 0), (1, 1), (1, 1), (0, 0)))
    net = points["pool1"] = max_pool(net, 3, 2, "VALID" if is_pool_padded else "SAME")
    net = _apply_blocks(net, num_units, style, points, "bottleneck_v2", _bottleneck_v2)
    net = points["postnorm"] = style.batch_norm(net, name="postnorm", act="relu")
    return classify(net, num_classes, style=style, points=points)


def _apply_blocks(
    net: jax.Array,
    num_units: Sequence[int],
    style: Style,
    points: EndPoints,
    name: str,
    bottleneck: Callable[[Style, jax.Array, int, int], jax.Array],
) -> jax.Array:
    for block, width, strides in plan_blocks(num_units, strided="last"):
        with scope(block):
            for number, stride in enumerate(strides, 1):
                with scope(f"unit_{number}"), scope(name):
                    net = bottleneck(style, net, width, stride)
                points[f"{block}/unit_{number}/{name}"] = net
        points[block] = net
    return net


def _bottleneck_v1(style: Style, x: jax.Array, width: int, stride: int) -> jax.Array:
    depth = 4 * width
    if x.shape[-1] == depth:
        shortcut = _subsample(x, stride)
    else:
        shortcut = style.linear.conv(x, depth, 1, stride=stride, name="shortcut")
    net = style.conv(x, width, 1, name="conv1")
    net = style.conv(net, width, 3, stride=stride, padding=1, name="conv2")
    net = style.linear.conv(net, depth, 1, name="conv3")
    return jax.nn.relu(shortcut + net)


def _bottleneck_v2(style: Style, x: jax.Array, width: int, stride: int) -> jax.Array:
    depth = 4 * width
    preact = style.batch_norm(x, name="preact", act="relu")
    if x.shape[-1] == depth:
        shortcut = _subsample(x, stride)
    else:
        shortcut = style.plain.conv(preact, depth, 1, stride=stride, name="shortcut")
    net = style.conv(preact, width, 1, name="conv1")
    net = style.conv(net, width, 3, stride=stride, padding=1, name="conv2")
    return shortcut + style.plain.conv(net, depth, 1, name="conv3")


def _subsample(x: jax.Array, stride: int) -> jax.Array:
    if stride == 1:
        return x
    # XLA's CPU compiler makes one kernel of the units before a pooling: windows of one pixel take
    # ResNet's forward pass to 0.83 to 0.91 of its time in four measurements. The values are the
    # same. In training the pooling's gradient would cost 8 % of a step; a slice's costs nothing.
    if layers.is_training():
        return x[:, ::stride, ::stride]
    return max_pool(x, 1, stride)


def _slim(version: str, num_layers: int, preprocessing: str, num_classes: int) -> Model:
    network = {"v1": resnet_v1, "v2": resnet_v2}[version]
    return slim_model(
        f"resnet_{version}_{num_layers}",
        functools.partial(network, num_units=NUM_UNITS[num_layers]),
        224,
        Settings(
            batch_norm_decay=0.997,
            batch_norm_epsilon=1e-5,
            unbiased_running_variance=True,
            weight_decay=1e-4,
        ),
        preprocessing=preprocessing,
        num_classes=num_classes,
    )


def _keras(num_layers: int) -> Model:
    return Model(
        name=f"keras_resnet_v2_{num_layers}",
        function=functools.partial(resnet_v2, num_units=NUM_UNITS[num_layers], is_pool_padded=True),
        default_image_size=224,
        settings=Settings(
            batch_norm_decay=0.99,
            batch_norm_epsilon=1.001e-5,
            unbiased_running_variance=False,
            weight_decay=0.0,
        ),
        source=f"keras.applications' ResNet{num_layers}V2",
    )


MODELS = (
    *(_slim("v1", num_layers, "vgg", 1000) for num_layers in NUM_UNITS),
    # TF-Slim's table of names says vgg's preprocessing here too, but these weights were trained and
    # measured with inception's.
    *(_slim("v2", num_layers, "inception", 1001) for num_layers in NUM_UNITS),
    *(_keras(num_layers) for num_layers in (50, 101, 152)),
)

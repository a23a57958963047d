"""ResNet v2 (He et al. 2016), normalised before each unit: TF-Slim's and keras.applications'."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from penstock.layers.initializers import variance_scaling
from penstock.models._registry import EndPoints, Model, Outputs, Settings, slim_model
from penstock.models._style import Style, classify, max_pool, scope
from penstock.models.resnet_v1 import NUM_UNITS, SLIM_SETTINGS, plan_blocks, subsample


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
    for block, width, strides in plan_blocks(num_units, strided="last"):
        with scope(block):
            for number, stride in enumerate(strides, 1):
                with scope(f"unit_{number}"), scope("bottleneck_v2"):
                    net = _bottleneck(style, net, width, stride)
                points[f"{block}/unit_{number}/bottleneck_v2"] = net
        points[block] = net
    net = points["postnorm"] = style.batch_norm(net, name="postnorm", act="relu")
    return classify(net, num_classes, style=style, points=points)


def _bottleneck(style: Style, x: jax.Array, width: int, stride: int) -> jax.Array:
    depth = 4 * width
    preact = style.batch_norm(x, name="preact", act="relu")
    if x.shape[-1] == depth:
        shortcut = subsample(x, stride)
    else:
        shortcut = style.plain.conv(preact, depth, 1, stride=stride, name="shortcut")
    net = style.conv(preact, width, 1, name="conv1")
    net = style.conv(net, width, 3, stride=stride, padding=1, name="conv2")
    return shortcut + style.plain.conv(net, depth, 1, name="conv3")


def _keras(num_layers: int) -> Model:
    num_units = NUM_UNITS[num_layers]
    return Model(
        name=f"keras_resnet_v2_{num_layers}",
        function=functools.partial(resnet_v2, num_units=num_units, is_pool_padded=True),
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
    # TF-Slim's table of names says vgg's preprocessing, but its weights were trained and measured
    # with inception's, the default.
    *(
        slim_model(
            f"resnet_v2_{num_layers}",
            functools.partial(resnet_v2, num_units=num_units),
            224,
            SLIM_SETTINGS,
        )
        for num_layers, num_units in NUM_UNITS.items()
    ),
    *(_keras(num_layers) for num_layers in (50, 101, 152)),
)

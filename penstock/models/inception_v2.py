"""Inception v2: the network of batch norm (Ioffe and Szegedy 2015), TF-Slim's inception_v2.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import jax
from jax.nn import initializers

from penstock import layers
from penstock.layers.initializers import truncated_normal, variance_scaling
from penstock.models._inception import SETTINGS, Branches, Conv, Pool, apply_module
from penstock.models._registry import EndPoints, Outputs, Settings, decays_kernels, slim_model
from penstock.models._style import Style, classify_in_scope, max_pool, scope

STEM = "Conv2d_1a_7x7"


def _narrow(num_filters: int) -> Conv:
    # TF-Slim's initializer of the 1x1 convolutions before a larger one.
    return Conv("0a", num_filters, 1, weights=truncated_normal(0.09))


def _module(
    single: int,
    threes: tuple[int, int],
    double_threes: tuple[int, int],
    pooled: int,
    pool: Literal["max", "avg"] = "avg",
) -> Branches:
    """Return a module: filters of 1x1, of 1x1 and the 3x3 behind, and behind the pooling."""
    last = double_threes[1]
    return (
        (Conv("0a", single, 1),),
        (_narrow(threes[0]), Conv("0b", threes[1], 3)),
        (_narrow(double_threes[0]), Conv("0b", last, 3), Conv("0c", last, 3)),
        (Pool(pool), Conv("0b", pooled, 1, weights=truncated_normal(0.1))),
    )


def _halving_module(threes: tuple[int, int], double_threes: tuple[int, int]) -> Branches:
    last = double_threes[1]
    return (
        (_narrow(threes[0]), Conv("1a", threes[1], 3, 2)),
        (_narrow(double_threes[0]), Conv("0b", last, 3), Conv("1a", last, 3, 2)),
        (Pool("max", 2),),
    )


MODULES = (
    ("Mixed_3b", _module(64, (64, 64), (64, 96), 32)),
    ("Mixed_3c", _module(64, (64, 96), (64, 96), 64)),
    ("Mixed_4a", _halving_module((128, 160), (64, 96))),
    ("Mixed_4b", _module(224, (64, 96), (96, 128), 128)),
    ("Mixed_4c", _module(192, (96, 128), (96, 128), 128)),
    ("Mixed_4d", _module(160, (128, 160), (128, 160), 96)),
    ("Mixed_4e", _module(96, (128, 192), (160, 192), 96)),
    ("Mixed_5a", _halving_module((128, 192), (192, 256))),
    ("Mixed_5b", _module(352, (192, 320), (160, 224), 128)),
    ("Mixed_5c", _module(352, (192, 320), (192, 224), 128, "max")),
)


def inception_v2(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build Inception v2: a separable stem of stride 8, ten modules, logits."""
    style = Style(settings=settings, weights=variance_scaling())
    points: EndPoints = {}
    with scope(STEM):
        # No batch norm and no weight decay: TF-Slim's arg scope of this network leaves separable
        # convolutions out, and the published weights have a bias here.
        net = points[STEM] = layers.separable_conv2d(
            images,
            num_filters=64,
            filter_size=7,
            stride=2,
            padding="SAME",
            depth_multiplier=8,
            param_attr=truncated_normal(1.0),
            depthwise_attr=truncated_normal(1.0),
            bias_attr=initializers.zeros,
            act=style.act,
            name="conv",
        )
    net = points["MaxPool_2a_3x3"] = max_pool(net, 3, 2, "SAME")
    second = replace(style, weights=truncated_normal(0.1))
    net = points["Conv2d_2b_1x1"] = second.conv(net, 64, 1, name="Conv2d_2b_1x1")
    net = points["Conv2d_2c_3x3"] = style.conv(net, 192, 3, name="Conv2d_2c_3x3")
    net = points["MaxPool_3a_3x3"] = max_pool(net, 3, 2, "SAME")
    for name, branches in MODULES:
        net = points[name] = apply_module(net, branches, style, name=name)
    return classify_in_scope(
        net, num_classes, style, points, name="Conv2d_1c_1x1", dropped="PreLogits"
    )


MODELS = (
    slim_model(
        "inception_v2",
        inception_v2,
        224,
        SETTINGS,
        decays=lambda path: decays_kernels(path) and not path.startswith(STEM),
    ),
)

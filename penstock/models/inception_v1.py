"""Inception v1: GoogLeNet (Szegedy et al. 2014) with batch norm, from TF-Slim's inception_v1.py."""

from __future__ import annotations

from dataclasses import replace

import jax

from penstock.layers.initializers import truncated_normal, variance_scaling
from penstock.models._inception import SETTINGS, Branches, Conv, Pool, apply_module
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import Style, classify_in_scope, max_pool


def _module(
    single: int, threes: tuple[int, int], fives: tuple[int, int], pooled: int, place: str = "0b"
) -> Branches:
    """Return a module; the numbers are filters, `place` is that of the third branch's last."""
    # What the paper calls 5x5 is 3x3 in TF-Slim.
    return (
        (Conv("0a", single, 1),),
        (Conv("0a", threes[0], 1), Conv("0b", threes[1], 3)),
        (Conv("0a", fives[0], 1), Conv(place, fives[1], 3)),
        (Pool("max"), Conv("0b", pooled, 1)),
    )


MODULES = (
    ("Mixed_3b", _module(64, (96, 128), (16, 32), 32)),
    ("Mixed_3c", _module(128, (128, 192), (32, 96), 64)),
    ("Mixed_4b", _module(192, (96, 208), (16, 48), 64)),
    ("Mixed_4c", _module(160, (112, 224), (24, 64), 64)),
    ("Mixed_4d", _module(128, (128, 256), (24, 64), 64)),
    ("Mixed_4e", _module(112, (144, 288), (32, 64), 64)),
    ("Mixed_4f", _module(256, (160, 320), (32, 128), 128)),
    # TF-Slim gives two convolutions of this branch the place 0a; their sizes tell them apart.
    ("Mixed_5b", _module(256, (160, 320), (32, 128), 128, place="0a")),
    ("Mixed_5c", _module(384, (192, 384), (48, 128), 128)),
)


def inception_v1(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build Inception v1: a stem of stride 8, nine modules, logits; no auxiliary heads."""
    style = Style(settings=settings, weights=truncated_normal(0.01))
    points: EndPoints = {}
    net = points["Conv2d_1a_7x7"] = style.conv(images, 64, 7, stride=2, name="Conv2d_1a_7x7")
    net = points["MaxPool_2a_3x3"] = max_pool(net, 3, 2, "SAME")
    net = points["Conv2d_2b_1x1"] = style.conv(net, 64, 1, name="Conv2d_2b_1x1")
    net = points["Conv2d_2c_3x3"] = style.conv(net, 192, 3, name="Conv2d_2c_3x3")
    net = points["MaxPool_3a_3x3"] = max_pool(net, 3, 2, "SAME")
    for name, branches in MODULES:
        if name == "Mixed_4b":
            net = points["MaxPool_4a_3x3"] = max_pool(net, 3, 2, "SAME")
        if name == "Mixed_5b":
            net = points["MaxPool_5a_2x2"] = max_pool(net, 2, 2, "SAME")
        net = points[name] = apply_module(net, branches, style, name=name)
    last = replace(style, weights=variance_scaling())
    return classify_in_scope(
        net, num_classes, last, points, name="Conv2d_0c_1x1", dropped="PreLogits"
    )


MODELS = (slim_model("inception_v1", inception_v1, 224, SETTINGS),)

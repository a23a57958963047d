"""Inception v3: Szegedy et al. 2015, from TF-Slim's inception_v3.py."""

from __future__ import annotations

from dataclasses import replace

import jax

from penstock.layers.initializers import truncated_normal, variance_scaling
from penstock.models._inception import (
    SETTINGS,
    Branches,
    Conv,
    Fork,
    Pool,
    apply_conv,
    apply_module,
    apply_stem,
    auxiliary_input,
    cut_to_image,
)
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import Style, classify_in_scope, global_pool, scope


def _module_35(
    pooled: int, fives: tuple[str, str] = ("Conv2d_0a_1x1", "Conv2d_0b_5x5")
) -> Branches:
    """Return a module for 35x35; `fives` are the names in the branch with the 5x5."""
    # TF-Slim names the layers of this branch in two ways; checkpoints hold both.
    return (
        (Conv("0a", 64, 1),),
        (Conv("0a", 48, 1, alias=fives[0]), Conv("0b", 64, 5, alias=fives[1])),
        (Conv("0a", 64, 1), Conv("0b", 96, 3), Conv("0c", 96, 3)),
        (Pool("avg"), Conv("0b", pooled, 1)),
    )


def _module_17(narrow: int) -> Branches:
    """Return a module for 17x17 that factors 7x7; `narrow` are the filters inside a branch."""
    return (
        (Conv("0a", 192, 1),),
        (Conv("0a", narrow, 1), Conv("0b", narrow, (1, 7)), Conv("0c", 192, (7, 1))),
        (
            Conv("0a", narrow, 1),
            Conv("0b", narrow, (7, 1)),
            Conv("0c", narrow, (1, 7)),
            Conv("0d", narrow, (7, 1)),
            Conv("0e", 192, (1, 7)),
        ),
        (Pool("avg"), Conv("0b", 192, 1)),
    )


def _module_8(second: str) -> Branches:
    """Return a module for 8x8; `second` is the place of the 3x1 in the second branch."""
    return (
        (Conv("0a", 320, 1),),
        (Conv("0a", 384, 1), Fork((Conv("0b", 384, (1, 3)), Conv(second, 384, (3, 1))))),
        (
            Conv("0a", 448, 1),
            Conv("0b", 384, 3),
            Fork((Conv("0c", 384, (1, 3)), Conv("0d", 384, (3, 1)))),
        ),
        (Pool("avg"), Conv("0b", 192, 1)),
    )


MODULES = (
    ("Mixed_5b", _module_35(32)),
    ("Mixed_5c", _module_35(64, fives=("Conv2d_0b_1x1", "Conv_1_0c_5x5"))),
    ("Mixed_5d", _module_35(64)),
    (
        "Mixed_6a",
        (
            # TF-Slim calls these convolutions of 3x3 1x1.
            (Conv("1a", 384, 3, 2, "VALID", alias="Conv2d_1a_1x1"),),
            (
                Conv("0a", 64, 1),
                Conv("0b", 96, 3),
                Conv("1a", 96, 3, 2, "VALID", alias="Conv2d_1a_1x1"),
            ),
            (Pool("max", 2, "VALID"),),
        ),
    ),
    ("Mixed_6b", _module_17(128)),
    ("Mixed_6c", _module_17(160)),
    ("Mixed_6d", _module_17(160)),
    ("Mixed_6e", _module_17(192)),
    (
        "Mixed_7a",
        (
            (Conv("0a", 192, 1), Conv("1a", 320, 3, 2, "VALID")),
            (
                Conv("0a", 192, 1),
                Conv("0b", 192, (1, 7)),
                Conv("0c", 192, (7, 1)),
                Conv("1a", 192, 3, 2, "VALID"),
            ),
            (Pool("max", 2, "VALID"),),
        ),
    ),
    ("Mixed_7b", _module_8(second="0b")),
    ("Mixed_7c", _module_8(second="0c")),
)


def inception_v3(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build Inception v3: a stem of stride 8, eleven modules, logits, and an auxiliary head.

    The auxiliary head's 5x5 shrinks with images of less than 299 pixels, as TF-Slim's does.
    """
    style = Style(settings=settings, weights=variance_scaling())
    points: EndPoints = {}
    net = apply_stem(images, style, points)
    for name, branches in MODULES:
        net = points[name] = apply_module(net, branches, style, name=name)
    if num_classes is not None:
        with scope("AuxLogits"):
            points["AuxLogits"] = _auxiliary_logits(points["Mixed_6e"], num_classes, style)
    return classify_in_scope(
        net, num_classes, style, points, name="Conv2d_1c_1x1", dropped="PreLogits"
    )


def _auxiliary_logits(x: jax.Array, num_classes: int, style: Style) -> jax.Array:
    x = auxiliary_input(x, style)
    # TF-Slim's deviations for this head; all other layers have those of the style.
    conv = Conv("2a", 768, cut_to_image(x, 5), padding="VALID", weights=truncated_normal(0.01))
    last = replace(style, weights=truncated_normal(0.001))
    features = global_pool(apply_conv(x, conv, style))
    return last.logits(features, num_classes, name="Conv2d_2b_1x1")


MODELS = (slim_model("inception_v3", inception_v3, 299, SETTINGS),)

"""Inception v4: Szegedy et al. 2016, from TF-Slim's inception_v4.py."""

from __future__ import annotations

from dataclasses import replace

import jax
from jax.nn import initializers

from penstock.layers.initializers import variance_scaling
from penstock.models._inception import (
    SETTINGS,
    Branches,
    Conv,
    Fork,
    Pool,
    apply_conv,
    apply_module,
    auxiliary_input,
)
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import Style, classify_in_scope, global_pool, scope

STEM = (
    Conv("1a", 32, 3, 2, "VALID"),
    Conv("2a", 32, 3, padding="VALID"),
    Conv("2b", 64, 3),
)
_SHRINKING_POOL = Pool("max", 2, "VALID")
_STEM_MODULES: tuple[tuple[str, Branches], ...] = (
    ("Mixed_3a", ((_SHRINKING_POOL,), (Conv("0a", 96, 3, 2, "VALID"),))),
    (
        "Mixed_4a",
        (
            (Conv("0a", 64, 1), Conv("1a", 96, 3, padding="VALID")),
            (
                Conv("0a", 64, 1),
                Conv("0b", 64, (1, 7)),
                Conv("0c", 64, (7, 1)),
                Conv("1a", 96, 3, padding="VALID"),
            ),
        ),
    ),
    ("Mixed_5a", ((Conv("1a", 192, 3, 2, "VALID"),), (_SHRINKING_POOL,))),
)
_INCEPTION_A: Branches = (
    (Conv("0a", 96, 1),),
    (Conv("0a", 64, 1), Conv("0b", 96, 3)),
    (Conv("0a", 64, 1), Conv("0b", 96, 3), Conv("0c", 96, 3)),
    (Pool("avg"), Conv("0b", 96, 1)),
)
_REDUCTION_A: Branches = (
    (Conv("1a", 384, 3, 2, "VALID"),),
    (Conv("0a", 192, 1), Conv("0b", 224, 3), Conv("1a", 256, 3, 2, "VALID")),
    (_SHRINKING_POOL,),
)
_INCEPTION_B: Branches = (
    (Conv("0a", 384, 1),),
    (Conv("0a", 192, 1), Conv("0b", 224, (1, 7)), Conv("0c", 256, (7, 1))),
    (
        Conv("0a", 192, 1),
        Conv("0b", 192, (7, 1)),
        Conv("0c", 224, (1, 7)),
        Conv("0d", 224, (7, 1)),
        Conv("0e", 256, (1, 7)),
    ),
    (Pool("avg"), Conv("0b", 128, 1)),
)
_REDUCTION_B: Branches = (
    (Conv("0a", 192, 1), Conv("1a", 192, 3, 2, "VALID")),
    (
        Conv("0a", 256, 1),
        Conv("0b", 256, (1, 7)),
        Conv("0c", 320, (7, 1)),
        Conv("1a", 320, 3, 2, "VALID"),
    ),
    (_SHRINKING_POOL,),
)
_INCEPTION_C: Branches = (
    (Conv("0a", 256, 1),),
    (Conv("0a", 384, 1), Fork((Conv("0b", 256, (1, 3)), Conv("0c", 256, (3, 1))))),
    (
        Conv("0a", 384, 1),
        Conv("0b", 448, (3, 1)),
        Conv("0c", 512, (1, 3)),
        Fork((Conv("0d", 256, (1, 3)), Conv("0e", 256, (3, 1)))),
    ),
    (Pool("avg"), Conv("0b", 256, 1)),
)
MODULES: tuple[tuple[str, Branches], ...] = (
    *_STEM_MODULES,
    *((f"Mixed_5{letter}", _INCEPTION_A) for letter in "bcde"),
    ("Mixed_6a", _REDUCTION_A),
    *((f"Mixed_6{letter}", _INCEPTION_B) for letter in "bcdefgh"),
    ("Mixed_7a", _REDUCTION_B),
    *((f"Mixed_7{letter}", _INCEPTION_C) for letter in "bcd"),
)


def inception_v4(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build Inception v4: a stem of stride 8, its modules, logits, and an auxiliary head.

    Weights of the auxiliary head fit images of about the size that they were trained with.
    """
    style = Style(settings=settings, weights=variance_scaling())
    points: EndPoints = {}
    net = images
    for conv in STEM:
        net = points[conv.name] = apply_conv(net, conv, style)
    for name, branches in MODULES:
        net = points[name] = apply_module(net, branches, style, name=name)
    # TF-Slim's arg scope has its initializer for convolutions alone: dense layers keep Xavier's.
    dense = replace(style, weights=initializers.glorot_uniform())
    if num_classes is not None:
        with scope("AuxLogits"):
            aux = auxiliary_input(points["Mixed_6h"], style)
            # As large as what it sees, as in TF-Slim: 5x5 for images of 299 pixels.
            size = (aux.shape[1], aux.shape[2])
            aux = style.conv(aux, 768, size, padding="VALID", name="Conv2d_2a")
            aux_logits = dense.logits(global_pool(aux), num_classes, name="Aux_logits")
        points["AuxLogits"] = aux_logits
    return classify_in_scope(
        net, num_classes, dense, points, name="Logits", dropped="PreLogitsFlatten"
    )


MODELS = (slim_model("inception_v4", inception_v4, 299, SETTINGS),)

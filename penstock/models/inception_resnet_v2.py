"""Inception-ResNet v2: Szegedy et al. 2016, from TF-Slim's inception_resnet_v2.py."""

from __future__ import annotations

from typing import NamedTuple

import jax

from penstock import layers
from penstock.models._inception import (
    SETTINGS,
    Branches,
    Conv,
    Pool,
    apply_branches,
    apply_module,
    apply_stem,
    auxiliary_input,
)
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import Style, classify_in_scope, global_pool, scope

_SHRINKING_POOL = Pool("max", 2, "VALID")
MIXED_5B: Branches = (
    (Conv("", 96, 1),),
    (Conv("0a", 48, 1), Conv("0b", 64, 5)),
    (Conv("0a", 64, 1), Conv("0b", 96, 3), Conv("0c", 96, 3)),
    (Pool("avg"), Conv("0b", 64, 1)),
)
MIXED_6A: Branches = (
    (Conv("1a", 384, 3, 2, "VALID"),),
    (Conv("0a", 256, 1), Conv("0b", 256, 3), Conv("1a", 384, 3, 2, "VALID")),
    (_SHRINKING_POOL,),
)
MIXED_7A: Branches = (
    (Conv("0a", 256, 1), Conv("1a", 384, 3, 2, "VALID")),
    (Conv("0a", 256, 1), Conv("1a", 288, 3, 2, "VALID")),
    (Conv("0a", 256, 1), Conv("0b", 288, 3), Conv("1a", 320, 3, 2, "VALID")),
    (_SHRINKING_POOL,),
)
BLOCK_35: Branches = (
    (Conv("", 32, 1),),
    (Conv("0a", 32, 1), Conv("0b", 32, 3)),
    (Conv("0a", 32, 1), Conv("0b", 48, 3), Conv("0c", 64, 3)),
)
BLOCK_17: Branches = (
    (Conv("", 192, 1),),
    (Conv("0a", 128, 1), Conv("0b", 160, (1, 7)), Conv("0c", 192, (7, 1))),
)
BLOCK_8: Branches = (
    (Conv("", 192, 1),),
    (Conv("0a", 192, 1), Conv("0b", 224, (1, 3)), Conv("0c", 256, (3, 1))),
)
WIDENING = "Conv2d_1x1"
LAST_CONV = "Conv2d_7b_1x1"


class Stage(NamedTuple):
    """A module that changes the size, and the residual blocks after it.

    Arguments:
      name: of the module.
      path: of the blocks, without their numbers, which count from 1.
      scale: of what a block adds to its input.
    """

    name: str
    module: Branches
    path: tuple[str, str]
    block: Branches
    num_blocks: int
    scale: float


# Residuals are scaled down, as in the paper: unscaled, networks this wide died early in training.
STAGES = (
    Stage("Mixed_5b", MIXED_5B, ("Repeat", "block35"), BLOCK_35, 10, 0.17),
    Stage("Mixed_6a", MIXED_6A, ("Repeat_1", "block17"), BLOCK_17, 20, 0.10),
    Stage("Mixed_7a", MIXED_7A, ("Repeat_2", "block8"), BLOCK_8, 9, 0.20),
)


def inception_resnet_v2(
    images: jax.Array, num_classes: int | None, *, settings: Settings
) -> Outputs:
    """Build Inception-ResNet v2: three stages of residual blocks, logits, and an auxiliary head.

    Weights of the auxiliary head fit images of about the size that they were trained with.
    """
    style = Style(settings=settings)
    points: EndPoints = {}
    net = apply_stem(images, style, points)
    for stage in STAGES:
        net = points[stage.name] = apply_module(net, stage.module, style, name=stage.name)
        net = _repeat_block(net, stage, style)
        if stage.name == "Mixed_6a":
            points["PreAuxLogits"] = net
    with scope("Block8"):
        # The last block has no ReLU.
        net = _add_residual(net, BLOCK_8, 1.0, style)
    net = points[LAST_CONV] = style.conv(net, 1536, 1, name=LAST_CONV)
    if num_classes is not None:
        with scope("AuxLogits"):
            aux = auxiliary_input(points["PreAuxLogits"], style)
            # As large as what it sees, as in TF-Slim: 5x5 for images of 299 pixels.
            size = (aux.shape[1], aux.shape[2])
            aux = style.conv(aux, 768, size, padding="VALID", name="Conv2d_2a_5x5")
            aux_logits = style.logits(global_pool(aux), num_classes, name="Logits")
        points["AuxLogits"] = aux_logits
    return classify_in_scope(
        net, num_classes, style, points, name="Logits", dropped="PreLogitsFlatten"
    )


def _repeat_block(x: jax.Array, stage: Stage, style: Style) -> jax.Array:
    outer, inner = stage.path
    with scope(outer):
        for number in range(1, stage.num_blocks + 1):
            with scope(f"{inner}_{number}"):
                x = layers.relu(_add_residual(x, stage.block, stage.scale, style))
    return x


def _add_residual(x: jax.Array, branches: Branches, scale: float, style: Style) -> jax.Array:
    """Return the input plus `scale` times the branches, brought to its channels."""
    wide = style.plain.conv(apply_branches(x, branches, style), x.shape[-1], 1, name=WIDENING)
    return x + scale * wide


MODELS = (
    slim_model(
        "inception_resnet_v2",
        inception_resnet_v2,
        299,
        SETTINGS,
        # Biases too, but not batch norm's, whose leaf has another name.
        decays=lambda path: path.endswith(("/w", "/b")),
    ),
)

"""What the residual networks share: how many units they have, where they stride, how they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax

from penstock import layers
from penstock.layers import _frame
from penstock.models._registry import EndPoints
from penstock.models._style import Style, global_pool, max_pool

NUM_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
"""Units in each of the four blocks of bottlenecks, by the number of layers."""


def blocks_of(
    num_units: Sequence[int], strided: Literal["first", "last"]
) -> list[tuple[str, int, list[int]]]:
    """Return each block's name, the width of its bottlenecks, and the strides of its units.

    Arguments:
      strided: which unit halves the image: the last of the first three blocks, as TF-Slim has it,
        or the first of the last three.

    >>> blocks_of((1, 2, 1, 1), strided="last")[1]
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
    """Return every `stride`-th pixel of `[B, H, W, C]`.

    On CPU XLA makes one kernel of the units before a pooling, so that windows of one pixel spare a
    tenth of ResNet's forward pass. Their gradient costs a training step as much, a slice's nothing.
    """
    if stride == 1:
        return x
    if _frame.current("subsample").is_training:
        return x[:, ::stride, ::stride]
    return max_pool(x, 1, stride)


def classify(
    x: jax.Array, num_classes: int | None, *, style: Style, points: EndPoints
) -> tuple[jax.Array, EndPoints]:
    """Return what a network does: pooled features, or the logits made of them; and `points`."""
    net = points["global_pool"] = global_pool(x)
    if num_classes is None:
        return net, points
    logits = points["Logits"] = style.logits(net, num_classes, name="logits")
    points["Predictions"] = layers.softmax(logits)
    return logits, points

"""What the residual networks share: the number of their units, and where they stride."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax

from penstock import layers
from penstock.models._settings import Settings
from penstock.models._style import max_pool

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

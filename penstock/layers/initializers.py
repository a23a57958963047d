"""Initial values that are not `jax.nn.initializers`' own, or that are one object for each number.

What is drawn alike, from one initializer at equal shapes, is drawn together and compiles once.
"""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax.nn import initializers

from penstock._program.frame import Initializer

XAVIER: Initializer = initializers.glorot_uniform()
"""What layers draw their weights from, as Fluid's do."""


@functools.cache
def normal(stddev: float) -> Initializer:
    """Return the initializer of normally distributed parameters."""
    return initializers.normal(stddev)


@functools.cache
def truncated_normal(stddev: float) -> Initializer:
    """Return TensorFlow's truncated normal: `stddev` is the deviation before it is cut."""
    return initializers.truncated_normal(stddev)


@functools.cache
def variance_scaling(factor: float = 2.0) -> Initializer:
    """Return TF-Slim's `variance_scaling_initializer`: deviation `sqrt(1.3 * factor / fan_in)`."""

    def initialize(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        # 1.3 makes up, roughly, for what the truncation takes; JAX's own corrects for it exactly.
        return truncated_normal((1.3 * factor / math.prod(shape[:-1])) ** 0.5)(key, shape, dtype)

    return initialize


def he_fan_out(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Draw a kernel of deviation `sqrt(1.3 * 2 / fan_out)`."""
    # The fan of a depthwise kernel [height, width, C, M] is that of one of its channels.
    fan_out = math.prod((*shape[:-2], shape[-1]))
    return truncated_normal((1.3 * 2 / fan_out) ** 0.5)(key, shape, dtype)

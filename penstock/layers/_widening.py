"""What sums, statistics and losses are computed in: float32, or wider where the values are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def widened(x: ArrayLike) -> jax.Array:
    """Return the values in float32, or in their own dtype where that is wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))

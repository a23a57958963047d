"""The scale of a loss: it keeps small gradients of float16 from becoming zero."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

INITIAL = 2.0**15
_FACTOR = 2.0
_STEPS_BEFORE_GROWTH = 2000
_LARGEST = 2.0**24


class LossScale(NamedTuple):
    """A scale that falls where gradients overflow, and grows after many updates that did not.

    Attributes:
      scale: what the loss is multiplied by; float32, no axes.
      num_finite: updates since it last changed; int32, no axes.

    Source: Micikevicius et al. 2018; factors and interval as in PyTorch's `GradScaler`.
    """

    scale: jax.Array
    num_finite: jax.Array

    @classmethod
    def initial(cls) -> LossScale:
        """Return what a run begins with."""
        return cls(jnp.float32(INITIAL), jnp.zeros((), jnp.int32))

    def after(self, is_finite: jax.Array) -> LossScale:
        """Return the scale after an update whose gradients were finite, or were not."""
        num_finite = self.num_finite + 1
        grows = num_finite >= _STEPS_BEFORE_GROWTH
        grown = jnp.where(grows, jnp.minimum(self.scale * _FACTOR, _LARGEST), self.scale)
        fallen = jnp.maximum(self.scale / _FACTOR, 1.0)
        return LossScale(
            jnp.where(is_finite, grown, fallen),
            jnp.where(is_finite & ~grows, num_finite, 0),
        )

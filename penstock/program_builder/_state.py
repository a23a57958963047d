"""The training state: what a run carries from step to step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax

from penstock._metrics import Accumulator
from penstock._program.frame import Params
from penstock._program.precision import LossScale


class State(NamedTuple):
    """Hold everything that a training run carries from step to step, as arrays on the devices.

    `builder.train` donates the state: use the state that it returns, and not the old one.

    It is a named tuple because JAX flattens it in every step: a frozen dataclass takes 3 us longer.
    A step does not change the last fields, `update_scale` and `key`, nor `num_skipped` where no
    update can be skipped. They are not donated and not returned by the compiled step. Each returned
    array takes 2 us, a tenth of the smallest step.

    Attributes:
      step: the number of updates so far, by all objectives together; an int32 scalar.
      variables: `{"params": ..., "batch_stats": ...}`, nested dicts by scope, layer and leaf.
      opt_state: the optimizer state of each objective, by name.
      metrics: the sums of each objective's metrics since the last reset, by name.
      loss_scale: the dynamic loss scale of each objective, by name; empty without one.
      num_skipped: the number of updates skipped because a loss or gradient was not finite; int32.
      update_scale: a factor for every update of the parameters; a float32 scalar.
      key: the root random key, uint32. The key of a step is derived from it and `step`.
    """

    step: jax.Array
    variables: dict[str, Params]
    opt_state: dict[str, optax.OptState]
    metrics: dict[str, Accumulator]
    loss_scale: dict[str, LossScale]
    num_skipped: jax.Array
    update_scale: jax.Array
    key: jax.Array

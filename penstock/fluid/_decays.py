"""Fluid's learning rates that fall as training goes on, as optax schedules.

In Fluid they are layers; here they are functions of the number of steps done, for
`learning_rate=` of an optimizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike


def exponential_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> optax.Schedule:
    """Return a schedule: `learning_rate * decay_rate ** (step / decay_steps)`.

    Arguments:
      staircase: round `step / decay_steps` down to an integer.

    >>> round(float(exponential_decay(0.5, 10, 0.5, staircase=True)(25)), 4)
    0.125
    """
    return lambda step: learning_rate * decay_rate ** _count(step, decay_steps, staircase)


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> optax.Schedule:
    """Return a schedule: `learning_rate * exp(-decay_rate * step / decay_steps)`.

    `staircase` is that of `exponential_decay`.

    >>> round(float(natural_exp_decay(1.0, 10, 0.5)(20)), 4)
    0.3679
    """
    return lambda step: learning_rate * jnp.exp(-decay_rate * _count(step, decay_steps, staircase))


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> optax.Schedule:
    """Return a schedule: `learning_rate / (1 + decay_rate * step / decay_steps)`.

    `staircase` is that of `exponential_decay`.

    >>> round(float(inverse_time_decay(1.0, 10, 0.5)(20)), 4)
    0.5
    """
    return lambda step: learning_rate / (1 + decay_rate * _count(step, decay_steps, staircase))


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> optax.Schedule:
    """Return a schedule that falls to `end_learning_rate` as `(1 - step / decay_steps) ** power`.

    Arguments:
      cycle: multiply `decay_steps` by `ceil(step / decay_steps)`: the rate rises again after every
        `decay_steps`, and falls over a period that is one `decay_steps` longer.

    >>> round(float(polynomial_decay(1.0, 10, end_learning_rate=0.5)(5)), 4)
    0.75
    """

    def rate(step: ArrayLike) -> jax.Array:
        whole = -_count(-jnp.asarray(step), decay_steps, is_whole=True)
        periods = jnp.maximum(whole, 1) if cycle else 1
        share = jnp.minimum(_count(step, decay_steps, is_whole=False) / periods, 1)
        return (learning_rate - end_learning_rate) * (1 - share) ** power + end_learning_rate

    return rate


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> optax.Schedule:
    """Return a schedule: `values[0]` before step `boundaries[0]`, then `values[1]`, and so on.

    Raises:
      ValueError: there is not exactly one more value than boundaries, or the boundaries do not
        rise.

    >>> [round(float(piecewise_decay([2], [1.0, 0.1])(step)), 4) for step in (1, 2)]
    [1.0, 0.1]
    """
    is_rising = all(a < b for a, b in itertools.pairwise(boundaries))
    if len(values) != len(boundaries) + 1 or not is_rising:
        raise ValueError(
            f"fluid.layers.piecewise_decay got boundaries={list(boundaries)} and values="
            f"{list(values)}, expected rising steps and one value more. Each boundary ends a "
            "value, and the last value has no end. Add or leave out a value."
        )

    def rate(step: ArrayLike) -> jax.Array:
        place = jnp.searchsorted(jnp.asarray(boundaries, jnp.int32), step, side="right")
        return jnp.asarray(values, jnp.float32)[place]

    return rate


def noam_decay(d_model: int, warmup_steps: int) -> optax.Schedule:
    """Return a schedule that rises for `warmup_steps`, then falls as `step ** -0.5`.

    Source: Fluid's `noam_decay`; Vaswani et al. 2017.

    Arguments:
      d_model: the model's width; the rate is scaled by `d_model ** -0.5`.
      warmup_steps: number of steps of linear warm-up.

    >>> round(float(noam_decay(4, warmup_steps=4)(3)), 4)
    0.25
    """

    def rate(step: ArrayLike) -> jax.Array:
        # The first step is step 1.
        number = jnp.asarray(step, jnp.float32) + 1
        return d_model**-0.5 * jnp.minimum(number**-0.5, number * warmup_steps**-1.5)

    return rate


def _count(step: ArrayLike, decay_steps: int, is_whole: bool) -> jax.Array:
    # Not the floor of the quotient: compiled, XLA multiplies by 1 / 41 instead, and 41 steps are
    # less than one period.
    count = jnp.floor_divide(step, decay_steps) if is_whole else jnp.divide(step, decay_steps)
    return count.astype(jnp.float32)

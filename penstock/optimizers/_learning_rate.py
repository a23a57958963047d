"""The learning rate inside the optimizer's state, where a step leaves it to be read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

LearningRate = float | optax.Schedule
"""A number, or an optax schedule: a traceable function of the number of updates done."""


def with_learning_rate(
    make: Callable[[float | jax.Array], optax.GradientTransformation], learning_rate: LearningRate
) -> optax.GradientTransformationExtraArgs:
    """Return `make(learning_rate)`, its state holding the rate of the last update.

    A number travels as a schedule that is constant: a run may then be resumed with another
    schedule, because the state's structure is the same. Against optax's own scheduling that is one
    scalar more in the state, or three where the rate never changes.

    Raises:
      ValueError: the number is negative or not finite.
    """
    if not callable(learning_rate):
        is_number = isinstance(learning_rate, int | float) and not isinstance(learning_rate, bool)
        if not is_number or not 0 <= learning_rate < math.inf:
            raise ValueError(
                f"learning_rate got {learning_rate!r}, expected a finite number of 0 or more, or a "
                "schedule such as optimizers.schedule(...)."
            )
        learning_rate = optax.constant_schedule(float(learning_rate))

    # One argument of a known name, which is the key in the state that `learning_rate` reads.
    def make_with_rate(learning_rate: float | jax.Array) -> optax.GradientTransformation:
        return make(learning_rate)

    injected = optax.inject_hyperparams(make_with_rate, hyperparam_dtype=jnp.float32)(learning_rate)  # pyright: ignore

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, new_state = injected.update(updates, state, params, **extra_args)
        # The rate is float32 and would turn bfloat16 moments into that: a second compile.
        return updates, optax.tree.cast_like(new_state, state)

    return optax.GradientTransformationExtraArgs(injected.init, update)


def learning_rate(opt_state: optax.OptState | None) -> jax.Array | None:
    """Return the learning rate of the last update, or of the first before there is one.

    It is an array in the optimizer's state, and returning it does not wait for the device. The
    factors `State.update_scale` and `ParamAttr.learning_rate` are not included.

    Arguments:
      opt_state: one objective's optimizer state, such as `state.opt_state["train"]`.

    Returns:
      A float32 scalar, or None if the state holds no learning rate or several. Optimizers from
      `optimizers.get` and `optax.inject_hyperparams` hold one.

    >>> from penstock import optimizers
    >>> optimizer = optimizers.get("sgd", optax.linear_schedule(0.5, 0.0, transition_steps=2))
    >>> params = {"w": jnp.ones(2)}
    >>> _, opt_state = optimizer.update(params, optimizer.init(params), params)
    >>> _, opt_state = optimizer.update(params, opt_state, params)
    >>> float(learning_rate(opt_state))
    0.25
    """
    kind = optax.InjectStatefulHyperparamsState
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    rates: list[Any] = []
    for node in nodes:
        if isinstance(node, kind) and "learning_rate" in node.hyperparams:
            rates.append(node.hyperparams["learning_rate"])
    # Of several nobody knows which is meant.
    return rates[0] if len(rates) == 1 else None

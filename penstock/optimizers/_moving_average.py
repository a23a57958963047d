"""Averages of the parameters that an optimizer's state holds, to be evaluated in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from penstock._errors import check_number


class MovingAverageState(NamedTuple):
    """Hold the state of an optimizer made by `with_moving_average`.

    Attributes:
      num_updates: the number of updates so far; an int32 scalar.
      weight: the weight of the parameters in the next average; a float32 scalar. It is 1 before the
        first update. Parameters that are loaded then replace the initial ones in the average.
      average: the average up to the parameters before the last update; float32, in the structure
        of the parameters.
      inner: the state of the wrapped optimizer.
    """

    num_updates: jax.Array
    weight: jax.Array
    average: optax.Params
    inner: optax.OptState


class SlowParamsState(NamedTuple):
    """Hold a program's state for `optax.lookahead`, which has fast and slow parameters.

    The program's parameters are the fast ones, which are trained.

    Attributes:
      slow: the slow parameters, which are evaluated, in the structure of the trained ones.
      inner: the state of the optimizer.
    """

    slow: optax.Params
    inner: optax.OptState


def with_moving_average(
    optimizer: optax.GradientTransformation, decay: float, *, is_ramped: bool = True
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer to keep an exponential moving average of the parameters in its state.

    After each update `average = decay * average + (1 - decay) * parameters`. The average starts at
    the initial parameters. It does not affect training; read it with `averaged_params`. It takes as
    much memory as the parameters in float32.

    The state is one update behind: an optimizer sees the parameters before its update, and its
    update may be scaled afterwards (`State.update_scale`). `averaged_params` adds the last update.

    Arguments:
      decay: the share of the average that an update keeps, from 0 to less than 1. 0.9999 averages
        over about ten thousand updates.
      is_ramped: limit the decay to `(1 + n) / (10 + n)` after n updates, which keeps the initial
        parameters out of the average of a short run.

    Source: TensorFlow's `ExponentialMovingAverage`, with `num_updates` as in TF-Slim.

    Raises:
      ValueError: the decay is outside its range.

    >>> optimizer = with_moving_average(optax.sgd(1.0), 0.75, is_ramped=False)
    >>> params = {"w": jnp.float32(4.0)}
    >>> update, state = optimizer.update({"w": jnp.float32(2.0)}, optimizer.init(params), params)
    >>> params = optax.apply_updates(params, update)
    >>> float(params["w"]), float(averaged_params(state, params)["w"])
    (2.0, 3.5)
    """
    why = "It is the share of the average that an update keeps, such as 0.9999."
    check_number("with_moving_average got decay=", decay, "[0, 1)", why)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: optax.Params) -> MovingAverageState:
        # A copy, since two donated leaves cannot share memory; and bfloat16 would stand still.
        average = jax.tree.map(lambda p: jnp.array(p, jnp.float32), params)
        weight = jnp.ones((), jnp.float32)
        return MovingAverageState(jnp.zeros((), jnp.int32), weight, average, inner.init(params))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None, **extra_args: Any
    ) -> tuple[optax.Updates, MovingAverageState]:
        if params is None:
            raise ValueError(
                "with_moving_average got no parameters, expected them as the third argument of "
                "update. They are what it averages."
            )
        average = _update_average(state, params)
        num_updates: Any = optax.safe_increment(state.num_updates)
        # Kept as 1 - decay: 1 - 0.9999 in float32 is off in the fourth digit.
        least = 9 / (10 + num_updates) if is_ramped else 0.0
        weight = jnp.maximum(1 - decay, least).astype(jnp.float32)
        updates, inner_state = inner.update(updates, state.inner, params, **extra_args)
        return updates, MovingAverageState(num_updates, weight, average, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def averaged_params(opt_state: optax.OptState, params: optax.Params) -> Any:
    """Return the parameters, the trained ones replaced by averages from the optimizer state.

    These are the moving averages of `with_moving_average`. Where a parameter has none, they are the
    averages at which `optax.contrib.schedule_free` is evaluated, or the slow parameters of
    `optax.lookahead`.
    Parameters that the optimizer does not train stay as they are. The function can be compiled.
    When it is not, its result can share memory with `params`, which a training step donates.

    Arguments:
      opt_state: the optimizer state of one objective, or of all objectives, `state.opt_state`.
      params: the parameters after the last update, `state.variables["params"]`.

    Raises:
      ValueError: the state holds no average.

    >>> optimizer = with_moving_average(optax.sgd(1.0), 0.9)
    >>> params = {"trained": jnp.ones(2), "frozen": jnp.zeros(2)}
    >>> opt_state = optimizer.init({"trained": params["trained"]})
    >>> sorted(averaged_params(opt_state, params))
    ['frozen', 'trained']
    """
    states = find_averaging_states(opt_state)
    if not states:
        raise ValueError(
            "averaged_params got an optimizer state without a moving average, expected one. Wrap "
            "the optimizer: optimizers.with_moving_average(optimizer, 0.9999), or pass "
            "moving_average_decay to optimizers.get."
        )
    evaluated = params
    for state in states:
        evaluated = _merge(evaluated, _get_average(state, params))
    return evaluated


def find_averaging_states(opt_state: optax.OptState) -> list[Any]:
    """Return the nodes of an optimizer's state that hold the average to evaluate.

    Of two for one parameter, the later one holds.
    """
    states: list[Any] = []
    # A moving average that was asked for comes after what an optimizer keeps by itself.
    for kinds in ((SlowParamsState, optax.contrib.ScheduleFreeState), MovingAverageState):
        nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kinds))  # noqa: B023
        states += [node for node in nodes if isinstance(node, kinds)]
    return states


def _get_average(state: Any, params: optax.Params) -> optax.Params:
    """Return the average that one state holds, of the parameters that it has."""
    if isinstance(state, SlowParamsState):
        return state.slow
    if isinstance(state, MovingAverageState):
        average = state.average
        # Under a lookahead the optimizer sees pairs: the fast ones are the program's.
        average = average.fast if isinstance(average, optax.LookaheadParams) else average
        state = state._replace(average=_drop_masked(average))
        trained = _select_like(state.average, params)
        return optax.tree.cast_like(_update_average(state, trained), trained)
    state = state._replace(z=_drop_masked(state.z))
    trained = _select_like(state.z, params)
    average: Any = optax.contrib.schedule_free_eval_params(state, trained)
    return optax.tree.cast_like(average, trained)


def _drop_masked(part: optax.Params) -> optax.Params:
    """Return nested dicts without the entries that a mask left out, which have no average."""
    if not isinstance(part, Mapping):
        return part
    return {
        name: _drop_masked(value)
        for name, value in part.items()
        if not isinstance(value, optax.MaskedNode)
    }


def _update_average(state: MovingAverageState, params: optax.Params) -> optax.Params:
    # Not optax.incremental_update, whose 1 - weight is rounded: with a decay of 0.9999 the average
    # was 3e-5 off after a thousand updates, this way below 1e-6.
    return jax.tree.map(lambda a, p: a + state.weight * (p - a), state.average, params)


def _select_like(part: optax.Params, whole: Any) -> optax.Params:
    """Return those entries of nested dicts that a part of them has."""
    if not isinstance(part, Mapping):
        return whole
    return {name: _select_like(value, whole[name]) for name, value in part.items()}


def _merge(whole: Any, part: optax.Params) -> optax.Params:
    """Return nested dicts with the entries of a part of them replaced."""
    if not isinstance(part, Mapping):
        return part
    return {**whole, **{name: _merge(whole[name], value) for name, value in part.items()}}

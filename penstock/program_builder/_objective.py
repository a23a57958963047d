"""Objectives, and the training state with the scale of a float16 loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from penstock._metrics import Accumulator
from penstock._parameter_names import parse
from penstock._program.frame import Params

SINGLE = "train"
"""The name of the objective of a builder that was given one program function."""

Optimizer = optax.GradientTransformation | Callable[[], optax.GradientTransformation]
"""An optax transformation, or a zero-argument function that returns one."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """Pair a loss with the optimizer that minimises it and the parameters that it updates.

    Arguments:
      program_func: returns the loss, alone or as the first item of a tuple or list. In a dict, the
        loss has the key `"loss"` or comes first.
      optimizer: an optax transformation, or a function without arguments that returns one.
      updates: names of scopes, layers or parameters, such as `"generator"` or `"generator/fc_0"`.
        All other parameters, their optimizer state and running statistics stay bit for bit the
        same. `None` updates everything trainable.

    Raises:
      TypeError: an argument has the wrong type.

    >>> import optax
    >>> from penstock import layers
    >>> def program():
    ...     return layers.mean(layers.fc(layers.data("x", shape=[2]), size=1, name="head"))
    >>> Objective(program, optax.sgd(0.1), updates="head").updates
    ('head',)
    """

    program_func: Callable[[], object]
    optimizer: Optimizer | None = None
    updates: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_program_func("Objective", self.program_func)
        object.__setattr__(self, "optimizer", _resolve_optimizer(self.optimizer))
        if isinstance(self.updates, str):
            object.__setattr__(self, "updates", (self.updates,))
        elif self.updates is not None:
            object.__setattr__(self, "updates", tuple(self.updates))

    def covers(self, path: Sequence[str]) -> bool:
        """Return whether `updates` names the entry at `path` or a scope or layer above it."""
        if self.updates is None:
            return True
        wanted = [parse(name) for name in self.updates]
        return any(tuple(path[: len(prefix)]) == prefix for prefix in wanted)


def check_program_func(owner: str, function: object) -> None:
    if not callable(function):
        raise TypeError(
            f"{owner} got {type(function).__name__} as program function, expected a function "
            "without arguments. Pass the function itself, not what it returns."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are written in C
        return
    try:
        signature.bind()
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        first = next(
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty and not parameter.kind.name.startswith("VAR_")
        )
        raise TypeError(
            f"a program got {name}{signature}, expected a function without arguments. Data comes "
            f"in by layers.data: {first} = layers.data({first!r}, shape=[...]), fed by that "
            f"name. What is no data is bound before: functools.partial({name}, ...)."
        ) from None


def _resolve_optimizer(
    optimizer: object,
) -> optax.GradientTransformationExtraArgs | None:
    if optimizer is None:
        return None
    if not isinstance(optimizer, optax.GradientTransformation) and callable(optimizer):
        try:
            optimizer = optimizer()
        # `optax.adam` in place of `optax.adam(1e-3)`, which needs its learning rate.
        except TypeError as error:
            error.add_note(
                "While calling the optimizer function without arguments. Call it yourself where it "
                "takes some: optax.adam(1e-3), not optax.adam."
            )
            raise
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"optimizer got {type(optimizer).__name__}, expected an optax transformation such as "
            "optax.adam(1e-3), or a function without arguments that returns one. Of "
            "optax.MultiSteps pass .gradient_transformation()."
        )
    # So every optimizer may be given the loss and the functions that line searches ask for.
    return optax.with_extra_args_support(optimizer)


def read_objectives(
    program_func: Callable[[], object] | Mapping[str, Objective] | None, optimizer: Optimizer | None
) -> dict[str, Objective]:
    """Return the objectives by name that a builder's first two arguments stand for."""
    if program_func is None:
        return {}
    if not isinstance(program_func, Mapping):
        return {SINGLE: Objective(program_func, optimizer)}
    wrong = {n: type(o).__name__ for n, o in program_func.items() if not isinstance(o, Objective)}
    if wrong or not program_func or optimizer is not None:
        raise TypeError(
            f"ProgramBuilder got objectives {wrong or dict(program_func)!r} and optimizer="
            f"{optimizer!r}, expected a non-empty dict of name to ps.Objective and no optimizer "
            "beside it: each objective has its own."
        )
    return dict(program_func)


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


INITIAL_LOSS_SCALE = 2.0**15
_FACTOR = 2.0
_STEPS_BEFORE_GROWTH = 2000
_LARGEST = 2.0**24


class LossScale(NamedTuple):
    """A scale that falls where gradients overflow, and grows after many updates that did not.

    Source: Micikevicius et al. 2018; factors and interval as in PyTorch's `GradScaler`.
    """

    scale: jax.Array
    num_finite: jax.Array

    @classmethod
    def initial(cls) -> LossScale:
        return cls(jnp.float32(INITIAL_LOSS_SCALE), jnp.zeros((), jnp.int32))

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

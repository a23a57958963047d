"""Objectives: a program function with its optimizer, or several."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence

import optax

from penstock._parameter_names import parse

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

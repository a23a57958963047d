"""What to do where a program function cannot be called, or asks for values that are not there."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import jax

from penstock._program.user_lines import find_raising_line

_NO_VALUES = (
    "{owner} asked for the values of an array at {line}, in {what}. A program is traced once, "
    "before there are any: no Python branch, loop or number can depend on them. {remedy}"
)

_REMEDIES: list[tuple[type[Exception], str, str]] = [
    (
        jax.errors.TracerBoolConversionError,
        "an if, a while, an assert, and, or, not",
        "Use jnp.where(condition, a, b) to choose for each example, jax.lax.cond to choose once, "
        "jax.lax.while_loop for a while, & | ~ for and, or, not.",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "an index of True and False",
        "It would give an array of a length that depends on them. Use jnp.where(mask, x, 0).",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "range() or the index of a Python list",
        "Use jax.lax.fori_loop or jax.lax.scan for the loop, jnp.take for the index.",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "a function of NumPy",
        "Use that of jax.numpy: jnp.sum for np.sum.",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "float(), int(), .item() or a shape",
        "Leave it an array: jnp functions take it as a number; return it to see it in the metrics.",
    ),
]


def advise(error: Exception, owner: str) -> None:
    """Say in an error what to do where a program function asked for values, and where that was.

    In place of JAX's own words, which name what we trace and a file of ours. Other errors get a
    note that names the program.
    """
    # The last is a base class of the first, so their order counts.
    for kind, what, remedy in _REMEDIES:
        if isinstance(error, kind):
            line = find_raising_line(error) or "an unknown line"
            error.args = (_NO_VALUES.format(owner=owner, line=line, what=what, remedy=remedy),)
            return
    error.add_note(f"While tracing {owner}.")


def check_without_arguments(function: Callable[..., object]) -> None:
    """Raise unless a function can be called without arguments.

    Raises:
      TypeError: it needs some.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are written in C
        return
    try:
        signature.bind()
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        # A user most often wrote the data as an argument: the remedy names it.
        first = next(
            each.name
            for each in signature.parameters.values()
            if each.default is each.empty and not each.kind.name.startswith("VAR_")
        )
        raise TypeError(
            f"a program got {name}{signature}, expected a function without arguments. Data comes "
            f"in by layers.data: {first} = layers.data({first!r}, shape=[...]), fed by that "
            f"name. What is no data is bound before: functools.partial({name}, ...)."
        ) from None

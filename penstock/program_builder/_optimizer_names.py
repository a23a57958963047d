"""Where an optimizer comes from: the names that errors give it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from types import FunctionType


def name_maker(update: Callable[..., object]) -> str:
    """Return what made an optimizer, such as `optax.chain(optax.clip, optax.sgd)`."""
    if not isinstance(update, FunctionType):
        return getattr(update, "__qualname__", type(update).__name__)
    # optax's transformations are closures: what made one is only in the names of its functions.
    inside = inspect.getclosurevars(update).nonlocals
    if "with_extra_args_support" in update.__qualname__ and "tx" in inside:
        return name_maker(inside["tx"].update)
    name = _public(update.__module__, update.__qualname__)
    if name == "optax.chain" and "update_fns" in inside:
        return f"{name}({', '.join(name_maker(each) for each in inside['update_fns'])})"
    return name


def name_culprit(error: Exception) -> str:
    """Return the optimizer whose function an exception came out of, the innermost one."""
    found = "it"
    # The last one that fits is the innermost.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if "<locals>" in name and not module.startswith(("jax", "penstock.program_builder")):
            found = _public(module, name)
    return found


def _public(module: str, qualname: str) -> str:
    """Return how users write the function that a nested function belongs to."""
    name = qualname.split(".<locals>")[0]
    if module.split(".")[0] != "optax":
        return name
    return f"optax.contrib.{name}" if module.startswith("optax.contrib") else f"optax.{name}"

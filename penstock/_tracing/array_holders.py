"""Who holds an array that a program function closes over, and by which name a user knows it."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from penstock._program.user_lines import find_user_line, is_user_file

_LIBRARIES = {"flax.nnx": "flax.nnx", "equinox": "Equinox", "haiku": "Haiku"}
_MAX_OBJECTS = 100_000
"""How many objects are looked at: what is found later is named by its shape alone."""


class Held(NamedTuple):
    """A constant: how a user knows it, and the library whose module holds it, if any."""

    label: str
    library: str | None = None


def find_holders(function: Callable[[], object], arrays: Mapping[int, jax.Array]) -> list[Held]:
    """Return who holds the arrays, by their ids, that a function closes over.

    Closures, globals that the code names, defaults, and the attributes and items of what is found
    there are walked through.
    """
    found: dict[int, Held] = {}
    seen: set[int] = set()
    queue: list[tuple[str, object, str | None]] = [("", function, None)]
    for path, value, library in queue:  # which grows: breadth first gives the shortest name
        if id(value) in arrays:
            found.setdefault(id(value), Held(f"{path} {_show(value)}", library))
        # Objects may hold each other in a circle.
        if id(value) in seen or len(seen) > _MAX_OBJECTS or len(found) == len(arrays):
            continue
        seen.add(id(value))
        # What a module holds is the module's, whatever its own type.
        of_value = _find_library(type(value)) or library
        queue += [(name, each, of_value) for name, each in _list_parts(path, value)]
    # Computed from others on the way, or held where nobody looks: its shape is all there is.
    return [found.get(number, Held(f"an array {_show(value)}")) for number, value in arrays.items()]


def describe_draw(equation: JaxprEqn) -> Held:
    """Return who draws the numbers of an equation, and where."""
    traceback = equation.source_info.traceback
    frames = getattr(traceback, "frames", ())
    # Frames begin with the innermost.
    names = [name for each in frames if (name := _find_library_of_file(each.file_name))]
    site = (
        find_user_line(traceback, lambda file: not _find_library_of_file(file)) or "an unknown line"
    )
    label = f"{_show(equation.outvars[0].aval)} drawn at {site} from a key of its own"
    return Held(label, names[0] if names else None)


def _find_library_of_file(file: str) -> str | None:
    """Return the library that a file of Python belongs to."""
    # Windows writes backslashes.
    path = file.replace("\\", "/")
    return next((n for p, n in _LIBRARIES.items() if f"/{p.replace('.', '/')}/" in path), None)


def _show(value: Any) -> str:
    return f"{list(value.shape)} {value.dtype}"


def _find_library(kind: type) -> str | None:
    """Return the library whose module or variable a class is."""
    # Of a user's subclass too: its bases tell whose module it is.
    for base in kind.__mro__:
        for package, name in _LIBRARIES.items():
            if base.__module__ == package or base.__module__.startswith(f"{package}."):
                return name
    return None


def _list_parts(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield what a value holds, each with its name."""
    # What holds nothing, and modules of Python, which hold everything.
    if isinstance(value, (jax.Array, np.ndarray, str, bytes, int, float, type, types.ModuleType)):
        return
    if isinstance(value, types.FunctionType):
        yield from _list_names(value)
    elif isinstance(value, functools.partial):
        yield from ((path, each) for each in (value.func, *value.args))
        yield from value.keywords.items()
    elif isinstance(value, types.MethodType):
        yield from ((path or "self", value.__self__), (path, value.__func__))
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", each) for key, each in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{number}]", each) for number, each in enumerate(value))
    # An nnx variable is known by the attribute that it is, not by the array inside.
    elif _find_library(type(value)) == "flax.nnx" and hasattr(value, "get_value"):
        yield path, value.get_value()
    elif hasattr(value, "__wrapped__"):
        yield path, value.__wrapped__  # what jax.jit returns
    else:
        attributes = list(getattr(value, "__dict__", {}).items())
        yield from ((f"{path}.{name}" if path else name, each) for name, each in attributes)


def _list_names(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the names outside a user's function that its code reads, and its defaults."""
    if not is_user_file(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            yield name, cell.cell_contents
    codes = [function.__code__]
    for code in codes:  # which grows by the functions inside
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        # Globals that the code never names cannot be in the trace.
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    yield from (("a default", each) for each in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()

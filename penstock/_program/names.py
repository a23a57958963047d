"""Names of layers: automatic ones are counted, scopes nest and share; the lines that made them."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import TypeVar

import flax
import jax
import numpy as np
from flax import linen as nn

from penstock._errors import ProgramError
from penstock._parameter_names import Path

T = TypeVar("T")

# JAX keeps the trace of a scan body or a jitted function and uses it again where the same function
# meets the same shapes: in another program too, with the mode and the parameters of this one.
# This context is a part of the key it is kept under; it changes with each frame and with each
# automatic name, so that a checkpointed block called three times makes three layers.
_TRACE_KEY = jax.make_user_context(None)


def check_name(owner: str, name: str) -> None:
    """Raise unless `name` can stand in a parameter path."""
    if not isinstance(name, str) or not name or "/" in name:
        raise ProgramError(
            f"{owner} got the name {name!r}, expected a non-empty string without '/'. Slashes "
            "separate scopes. Use layers.scope for a nested name."
        )


class Scope:
    """Names in use while one scope is open; calling the scope again starts from a fresh one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counters: dict[str, int] = {}
        self.owners: dict[str, tuple[str, bool]] = {}


class ScopeModule(nn.Module):
    """The flax module behind the program and behind each `layers.scope`.

    It exists so that flax.linen modules made inside land under the scope's name.
    """

    @nn.compact
    def __call__(self, function: Callable[[], T]) -> T:
        """Run `function` inside this module's compact method."""
        return function()


class Names:
    """The names that one run of a program function has given."""

    def __init__(self) -> None:
        self.scope = Scope(())
        self._modules: dict[Path, ScopeModule] = {}
        self._trace_keys = contextlib.ExitStack()

    def separate_traces(self) -> contextlib.ExitStack:
        """Return a context in which JAX uses no traces of other runs."""
        self._trace_keys = contextlib.ExitStack()
        self._trace_keys.enter_context(_TRACE_KEY(object()))
        return self._trace_keys

    def layer(self, kind: str, name: str | None) -> Path:
        """Return the path of a layer: automatic names count per kind, explicit ones are kept.

        Raises:
          ProgramError: the name is in use for another kind of layer.
        """
        scope, is_explicit = self.scope, name is not None
        if name is None:
            # A body traced once for two calls would give both the names of the first.
            self._trace_keys.enter_context(_TRACE_KEY(object()))
            count = scope.counters.get(kind, 0)
            scope.counters[kind] = count + 1
            name = f"{kind}_{count}"
        else:
            check_name(f"layers.{kind}", name)
        # An automatic name that an explicit one took would share parameters by accident.
        owner = scope.owners.setdefault(name, (kind, is_explicit))
        if owner != (kind, is_explicit):
            raise ProgramError(
                f"layers.{kind} got the name {name!r}, which a layers.{owner[0]} in the same scope "
                f"has already ({'explicit' if owner[1] else 'automatic'} name). Two layers share "
                "parameters only when both are given the same name. Rename one of them."
            )
        return (*scope.path, name)

    def is_automatic(self, path: Path) -> bool:
        """Return whether the name of a layer of the open scope was counted."""
        return not self.scope.owners.get(path[len(self.scope.path)], ("", True))[1]

    def run_scope(self, name: str, function: Callable[[], T]) -> T:
        """Run `function` with names below `name`; running a scope again shares its parameters."""
        with self.open_scope(name):
            path = self.scope.path
            # One module for a path: flax refuses a second of the same name.
            if path not in self._modules:
                self._modules[path] = ScopeModule(name=name)
            # A scope run again gives its flax children new parents: forget the old children.
            self._modules = {p: m for p, m in self._modules.items() if p[:-1] != path}
            return self._modules[path](function)

    @contextlib.contextmanager
    def open_scope(self, name: str) -> Iterator[None]:
        """Put penstock's own layers below `name`; flax modules need `run_scope`."""
        check_name("layers.scope", name)
        outer = self.scope
        if outer.owners.setdefault(name, ("scope", True))[0] != "scope":
            raise ProgramError(
                f"layers.scope got the name {name!r}, which a layer in the same scope has already. "
                "Rename one of them."
            )
        # A fresh one each time: its counters begin at 0, and so the same layers have the same
        # names.
        self.scope = Scope((*outer.path, name))
        try:
            yield
        finally:
            self.scope = outer


_PACKAGE = pathlib.Path(__file__).parents[1]
_CALLER = str(_PACKAGE / "_tracing" / "probe.py")
"""What calls the program function."""
_SKIPPED_FOLDERS = (
    *(
        str(_PACKAGE / name)
        for name in ("_program", "_tracing", "layers", "fluid", "program_builder")
    ),
    *(str(pathlib.Path(str(module.__file__)).parent) for module in (jax, flax, np)),
)


def find_user_lines(depth: int = 1) -> tuple[str, ...]:
    """Return `file:line` of every user's frame from the program function down to here.

    Arguments:
      depth: how many frames above this one to begin.
    """
    # Not `traceback` or `inspect`, which read source files: this runs for every layer.
    lines, frame = [], sys._getframe(depth)
    # What the builder puts around flax modules stands between the user's lines.
    while frame is not None and frame.f_code.co_filename != _CALLER:
        if not frame.f_code.co_filename.startswith(_SKIPPED_FOLDERS):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(lines))


def find_user_line(traceback: object, is_wanted: Callable[[str], bool] = lambda file: True) -> str:
    """Return `file:line` of the user's innermost frame in a traceback of JAX's, or nothing.

    Arguments:
      is_wanted: of a file, whether it is the user's after all.
    """
    for frame in getattr(traceback, "frames", ()):
        if is_user_file(frame.file_name) and is_wanted(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return ""


def find_raising_line(error: BaseException) -> str:
    """Return `file:line` of the user's innermost frame that raised an exception, or nothing."""
    frames = [(each.f_code.co_filename, line) for each, line in walk_tb(error.__traceback__)]
    lines = [f"{name}:{line}" for name, line in frames if is_user_file(name)]
    return lines[-1] if lines else ""


def is_user_file(name: str) -> bool:
    """Return whether a file of Python is neither a layer nor JAX's, numpy's or the builder's."""
    return not name.startswith(_SKIPPED_FOLDERS)

"""Lines of user code: which of those on the stack, or in a trace, are neither ours nor JAX's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb

import flax
import jax
import numpy as np

_PACKAGE = Path(__file__).parents[1]
_CALLER = str(_PACKAGE / "_tracing" / "evaluation.py")
"""What calls the program function."""
_SKIPPED_FOLDERS = (
    *(
        str(_PACKAGE / name)
        for name in ("_program", "_tracing", "layers", "fluid", "program_builder")
    ),
    *(str(Path(str(module.__file__)).parent) for module in (jax, flax, np)),
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

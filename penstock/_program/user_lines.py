"""Which lines are the user's: in a stack, in a traceback of JAX's, in an exception."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from traceback import FrameSummary, extract_tb

import flax
import jax
import numpy as np
import optax

_PACKAGE = pathlib.Path(__file__).parents[1]
_CALLER = str(_PACKAGE / "_tracing" / "probe.py")
"""What calls the program function."""
_SKIPPED_FOLDERS = tuple(
    f"{folder}{os.sep}"  # or a package such as flaxmodels would be flax's
    for folder in (
        *map(
            _PACKAGE.joinpath,
            ("_program", "_tracing", "layers", "fluid", "program_builder", "trainer"),
        ),
        *(pathlib.Path(str(module.__file__)).parent for module in (jax, flax, optax, np)),
        pathlib.Path(jax.__file__).parents[1] / "jaxlib",
    )
)
_PYTHON = str(pathlib.Path(contextlib.__file__).parent)


def find_user_lines(depth: int = 1) -> tuple[str, ...]:
    """Return `file:line` of every user's frame from the program function down to here."""
    # Not `traceback` or `inspect`, which read source files: this runs for every layer.
    lines, frame = [], sys._getframe(depth)
    # What the builder puts around flax modules stands between the user's lines.
    while frame is not None and frame.f_code.co_filename != _CALLER:
        if not frame.f_code.co_filename.startswith(_SKIPPED_FOLDERS):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(lines))


def find_raising_frame(error: BaseException) -> FrameSummary | None:
    """Return the user's innermost frame that raised an exception; those above it only call it."""
    frames = [frame for frame in extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    return frames[-1] if frames else None


def is_user_file(name: str) -> bool:
    """Return whether a file of Python is neither a layer nor JAX's, numpy's or the builder's."""
    # What is installed lies in Python's own folder too, and may hold program functions.
    is_python = name.startswith(_PYTHON) and "site-packages" not in name
    return not is_python and not name.startswith(_SKIPPED_FOLDERS)

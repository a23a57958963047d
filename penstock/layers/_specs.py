"""What a program asks for: inputs and parameters, and the lines of user code that ask."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np

Initializer = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]

_PACKAGE = Path(__file__).parents[1]
_CALLER = str(_PACKAGE / "program_builder" / "_evaluation.py")
"""What calls the program function."""
_SKIPPED_FOLDERS = (
    *(str(_PACKAGE / name) for name in ("layers", "fluid", "program_builder")),
    *(str(Path(str(module.__file__)).parent) for module in (jax, flax)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedSpec:
    """What one `layers.data` call expects; `shape` leaves out the batch axis."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One entry of the parameter tree, as a layer asked for it.

    `learning_rate` multiplies the optimizer's update, `regularizer` maps the parameter to what is
    added to its gradient, `stack` the user's lines from the program function to the layer,
    `is_automatic` whether the layer's name was counted.
    """

    path: tuple[str, ...]
    collection: str
    shape: tuple[int, ...]
    dtype: np.dtype
    initializer: Initializer
    trainable: bool = True
    learning_rate: float = 1.0
    regularizer: Callable[[jax.Array], jax.Array] | None = None
    stack: tuple[str, ...] = ()
    is_automatic: bool = False

    @property
    def site(self) -> str:
        """The user's line that made the layer, as `file:line`."""
        return self.stack[-1] if self.stack else "unknown"

    @property
    def name(self) -> str:
        """The path joined with slashes, e.g. `generator/fc_0/w`."""
        return "/".join(self.path)

    def agrees_with(self, other: ParameterSpec) -> bool:
        """Return whether two uses of one name ask for the same.

        One line that runs twice may make a regularizer anew each time, e.g. a lambda.
        """
        same = all(
            getattr(self, name) == getattr(other, name)
            for name in ("shape", "dtype", "trainable", "learning_rate")
        )
        return same and (self.regularizer == other.regularizer or self.site == other.site)


def user_stack(depth: int = 1) -> tuple[str, ...]:
    """Return `file:line` of every user's frame from the program function down to here.

    Arguments:
      depth: how many frames above this one to begin.
    """
    lines, frame = [], sys._getframe(depth)
    # What the builder puts around flax modules stands between the user's lines.
    while frame is not None and frame.f_code.co_filename != _CALLER:
        if is_user_file(frame.f_code.co_filename):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(lines))


def site_of(traceback: Any, is_wanted: Callable[[str], bool] = lambda file: True) -> str:
    """Return `file:line` of the user's innermost frame in a traceback of JAX's, or nothing.

    Arguments:
      is_wanted: of a file, whether it is the user's after all.
    """
    for frame in getattr(traceback, "frames", ()):
        if is_user_file(frame.file_name) and is_wanted(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return ""


def is_user_file(name: str) -> bool:
    """Return whether a file of Python is neither a layer nor JAX's, flax's or the builder's."""
    return not name.startswith(_SKIPPED_FOLDERS)

"""The errors penstock raises, each a subclass of the builtin it refines."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LayerContextError(RuntimeError):
    """A layer was called where no program is being built."""


class ProgramError(ValueError):
    """A program function does something no program can be derived from."""


class FeedError(ValueError):
    """A feed, batch or sample does not fit what the program declared with `layers.data`."""


class ReaderError(ValueError):
    """A reader cannot be read the way it was asked to be."""


class ParameterError(ValueError):
    """Parameters, in a file or in memory, do not fit the program."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, of another network, or could not be written."""


class FolderInUseError(RuntimeError):
    """Another run is at work in the folder."""


class NonFiniteError(FloatingPointError):
    """A loss was nan or infinite."""


class UnknownNameError(KeyError):
    """A name is not among those that exist."""

    def __str__(self) -> str:
        """Return the message as it is; `KeyError` would print its repr."""
        return str(self.args[0]) if self.args else ""


def message(thing: str, got: object, expected: str, why: str, remedy: str) -> str:
    """Return the text of an error, in the shape that every error of penstock has.

    >>> message("batch_size", 0, "an int >= 1", "A batch holds samples", "Pass e.g. 64")
    'batch_size got 0, expected an int >= 1. A batch holds samples. Pass e.g. 64.'
    """
    return f"{thing} got {got}, expected {expected}. {why}. {remedy}."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the known name closest to `name`, or an empty string.

    >>> nearest("imgae", ["image", "label"])
    " Did you mean 'image'?"
    """
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def listed(names: Iterable[str]) -> str:
    """Return `'a', 'b'` for names, or `nothing` when there are none."""
    return ", ".join(repr(name) for name in names) or "nothing"

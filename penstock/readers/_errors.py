"""The errors of readers, notes on the errors of others, and a check of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from penstock._errors import ReaderError, message

Choice = TypeVar("Choice")


class ShardError(ReaderError):
    """The data cannot be divided over the processes as the shard requires."""


class ReaderStateError(ReaderError):
    """A state does not belong to the reader it was given to."""


class ReaderExhaustedError(ReaderError):
    """A second pass was started over something that can be read only once."""


class ComposeNotAligned(ReaderError):
    """The readers given to `compose` have different lengths."""


class DatasetNotFoundError(FileNotFoundError):
    """A data set's files are missing; says where they are expected and how to get them."""


class ArchiveError(ReaderError):
    """A data set's archive or file is damaged, is the wrong file, or is larger than allowed.

    Attributes:
      path: the file.
      member: the file inside the archive, `None` if the error concerns the whole archive.
    """

    path: str | None = None
    member: str | None = None


class UnsafeArchiveError(ArchiveError):
    """An archive would write outside the folder that it is unpacked to."""


class RecordError(ValueError):
    """A record or its file is damaged, or does not hold what was declared.

    Attributes:
      path: the file, `None` until a reader adds it.
      offset: where the record starts, in bytes from the start of the (decompressed) file.
      index: the record's number in its file, from 0.

    >>> error = RecordError("feature 'label' got 2 values, expected 1.")
    >>> print(error.at("a.tfrecord", offset=39, index=1))
    'a.tfrecord', record 1 at byte 39: feature 'label' got 2 values, expected 1.
    """

    path: str | None = None
    offset: int | None = None
    index: int | None = None

    def at(self, path: str | Path, *, offset: int, index: int | None = None) -> RecordError:
        """Return the error with its location in front, or unchanged if it already has one."""
        if self.path is not None:
            return self
        record = "" if index is None else f"record {index} "
        origin = f"'{path}', {record}at byte {offset}"
        located = type(self)(f"{origin}: {self}")
        located.path, located.offset, located.index = str(path), offset, index
        return located


class FeatureError(RecordError):
    """A payload is no example, or does not hold what the feature spec or blob declares."""


def note(error: BaseException, origin: str) -> None:
    """Add `origin` to an exception as a note, once.

    Type and traceback are kept. A line is not added twice when the exception passes several
    readers.

    Raises:
      RuntimeError: the exception is a `StopIteration` of a user's function, such as that of `next`
        of nothing. It would end the pass as if there were no more samples; generators too refuse
        it.
    """
    if isinstance(error, StopIteration):
        failure = RuntimeError("a function of a reader raised StopIteration")
        failure.add_note(origin)
        raise failure from error
    if origin not in getattr(error, "__notes__", ()):
        error.add_note(origin)


def check_int(
    thing: str, value: object, minimum: int, why: str, error: type[ValueError] = ValueError
) -> int:
    """Return `value` if it is an int of at least `minimum`.

    >>> check_int("firstn(n)", 3, 0, "It counts samples")
    3
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        expected = f"an int >= {minimum}"
        # NumPy's have no JSON, in which a position is saved.
        remedy = "int(...) of it" if isinstance(value, np.integer) else expected
        raise error(message(thing, repr(value), expected, why, f"Pass {remedy}"))
    return value


def check_choice(thing: str, value: Choice, choices: Sequence[Choice], why: str) -> Choice:
    """Return `value` if it is one of the choices."""
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(message(thing, repr(value), expected, why, "Pass one of them"))
    return value

"""The errors of readers, notes on the errors of others, and a check of numbers."""

from __future__ import annotations

from penstock._errors import ReaderError, message


class ShardError(ReaderError):
    """The data cannot be divided as the shard asks."""


class ReaderStateError(ReaderError):
    """A state does not belong to the reader it was given to."""


class ReaderExhaustedError(ReaderError):
    """A second pass was asked of something that can be read only once."""


class ComposeNotAligned(ReaderError):
    """The readers given to `compose` have different lengths."""


class DatasetNotFoundError(FileNotFoundError):
    """A named dataset's files are missing; says where they are expected and how to get them."""


class ArchiveError(ReaderError):
    """A data set's archive or file is damaged, is another one, or holds more than it may.

    Attributes:
      path: the file.
      member: the file inside the archive, `None` where it is about the whole.
    """

    path: str | None = None
    member: str | None = None


class UnsafeArchiveError(ArchiveError):
    """An archive would write outside the folder that it is unpacked to."""


def note(error: BaseException, origin: str) -> None:
    """Add `origin` to an exception as a note, once.

    Type and traceback are kept. A line is not added twice when the exception passes several
    readers.

    >>> error = ValueError("bad")
    >>> note(error, "record 3")
    >>> note(error, "record 3")
    >>> error.__notes__
    ['record 3']
    """
    if origin not in getattr(error, "__notes__", ()):
        error.add_note(origin)


def check_int(thing: str, value: object, minimum: int, why: str) -> int:
    """Return `value` if it is an int of at least `minimum`.

    Raises:
      ValueError: it is not.

    >>> check_int("firstn(n)", 3, 0, "It counts samples")
    3
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        expected = f"an int >= {minimum}"
        raise ValueError(message(thing, repr(value), expected, why, f"Pass {expected}"))
    return value

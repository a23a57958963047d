"""The errors of record files: everything a damaged or foreign file can raise is one of these."""

from __future__ import annotations

from pathlib import Path

from penstock._errors import message


class RecordError(ValueError):
    """A record, or the file around it, cannot be read as what it was declared to be.

    Args:
      thing: what was read, e.g. `feature 'label'`.
      got: what was found.
      expected: what should have been there.
      why: the rule that was broken, without a full stop.
      remedy: what to do, without a full stop.

    Attributes:
      path: the file, `None` until a reader has added it.
      offset: where the record starts, in bytes from the start of the (decompressed) file.
      index: the record's number in its file, from 0.

    >>> error = RecordError("feature 'label'", "2 values", "1", "Its shape is ()", "Fix the shape")
    >>> print(error.at("a.tfrecord", offset=39, index=1))
    'a.tfrecord', record 1 at byte 39: feature 'label' got 2 values, expected 1. Its shape is (). Fix the shape.
    """  # noqa: E501  (one line of output)

    path: str | None = None
    offset: int | None = None
    index: int | None = None

    def __init__(self, thing: str, got: object, expected: str, why: str, remedy: str) -> None:
        super().__init__(message(thing, got, expected, why, remedy))
        self.parts = (thing, got, expected, why, remedy)

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is rebuilt from `args`, which is the text alone: this one would fail.
        return type(self), self.parts, self.__dict__

    def at(self, path: str | Path, *, offset: int, index: int | None = None) -> RecordError:
        """Return the same error saying where it happened; one that says so already is kept."""
        if self.path is not None:
            return self
        record = "" if index is None else f"record {index} "
        origin = f"'{path}', {record}at byte {offset}"
        thing, *rest = self.parts
        located = type(self)(f"{origin}: {thing}", *rest)  # type: ignore[arg-type]
        located.path, located.offset, located.index = str(path), offset, index
        return located


class FramingError(RecordError):
    """The bytes around a payload are damaged: a length, a checksum, or the end of the file."""


class FeatureError(RecordError):
    """A payload is no example, or does not hold what the feature spec or blob declares."""


class ImageError(RecordError):
    """Encoded bytes are no image opencv can decode, or one of another shape than declared."""

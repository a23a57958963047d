"""The errors of record files: everything a damaged or foreign file can raise is one of these."""

from __future__ import annotations

from penstock.readers._errors import FeatureError as FeatureError
from penstock.readers._errors import RecordError as RecordError


class FramingError(RecordError):
    """The bytes around a payload are damaged: a length, a checksum, or the end of the file."""


class ImageError(RecordError):
    """Encoded bytes are no image opencv can decode, or one of another shape than declared."""

"""The errors of downloading and converting datasets."""

from __future__ import annotations

from penstock.readers._errors import ArchiveError as ArchiveError
from penstock.readers._errors import UnsafeArchiveError as UnsafeArchiveError


class DownloadError(OSError):
    """A file could not be downloaded whole, or is not the file it should be."""


class ConversionError(ValueError):
    """A conversion cannot be done: a file does not hold what it should."""


class ArgumentError(ConversionError):
    """An argument of a conversion is out of range, or names nothing to convert."""


class StaleFilesError(ConversionError, FileExistsError):
    """Files of another conversion lie where readers would take them for this one's."""

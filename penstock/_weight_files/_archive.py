"""Zip archives whose entries are as large as they say and no larger than the archive."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock._weight_files._file import WeightFileError

# What zipfile raises for damaged and encrypted archives, depending on where the damage is.
ZIP_ERRORS = (
    zipfile.BadZipFile, EOFError, IndexError, OSError, OverflowError, RuntimeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip


class Archive:
    """A zip archive of stored entries, as torch and Keras write them.

    Compressed entries are refused, and the entries read may not be larger together than the
    archive, so that no archive of a few bytes unpacks to gigabytes, overlapping entries included.

    Arguments:
      expansion: how many times larger than the archive the entries may be together; entries may
        be compressed where it is more than 1.
    """

    def __init__(self, path: Path, *, expansion: int = 1) -> None:
        self._size, self._is_packed = path.stat().st_size, expansion > 1
        self._left = self._size * expansion
        try:
            self._zip = zipfile.ZipFile(path)
        except ZIP_ERRORS as error:
            raise WeightFileError(
                f"got a zip archive of {self._size} bytes without its table of entries ({error}), "
                "expected the table at the end. It is cut off or damaged: download it again."
            ) from error
        self.names = tuple(self._zip.namelist())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._zip.close()

    def read(self, name: str) -> bytes:
        """Return the bytes of an entry, its checksum checked."""
        if name not in self.names:
            raise WeightFileError(
                f"got no entry {name!r}, expected one. It is cut off or damaged: download it again."
            )
        entry = self._zip.getinfo(name)
        is_stored = entry.compress_type == zipfile.ZIP_STORED
        is_packed = self._is_packed and entry.compress_type == zipfile.ZIP_DEFLATED
        if not is_packed and not (is_stored and entry.file_size == entry.compress_size):
            raise WeightFileError(
                f"got a compressed entry {name!r}, expected stored ones, as torch and Keras write "
                "them. A small archive could fill the memory. Pack it again without compression."
            )
        # Entries may overlap: together they may then be larger than the archive, again and again.
        self._left -= entry.file_size
        if self._left < 0:
            raise WeightFileError(
                f"got entries larger than the archive of {self._size} bytes, expected them to fit. "
                "Entries overlap or are damaged: download it again."
            )
        try:
            return self._zip.read(name)
        except ZIP_ERRORS as error:
            raise WeightFileError(
                f"got a damaged entry {name!r} ({error}), expected {entry.file_size} bytes with "
                "their checksum. Download it again."
            ) from error

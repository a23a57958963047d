"""What all readers of weight files share: what they return, their errors, zip archives."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

Format = Literal["tf_slim", "keras", "torch", "paddle", "numpy"]


# What a reader returns: arrays by name, and a sentence for each choice; see `WeightFile`.
Content = tuple[Mapping[str, np.ndarray], tuple[str, ...]]


class WeightFileError(ValueError):
    """A weight file cannot be read; its message lacks the path, which `read_weights` adds."""


def damaged(got: str, expected: str) -> WeightFileError:
    return WeightFileError(
        f"got {got}, expected {expected}. It is cut off or damaged: download it again."
    )


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """The arrays of a weight file, under the names that its writer gave them.

    Arguments:
      path: the file, or the prefix of a TensorFlow checkpoint.
      format: whose names and layouts the arrays have. A `.safetensors` file is `"torch"`, a plain
        pickle of arrays `"paddle"`; a `.npz` says nothing of its writer and is `"numpy"`.
      arrays: name -> array, in the file's order. An array may be read-only, or strided.
      notes: what was chosen or left out, one sentence for each choice.
    """

    path: Path
    format: Format
    arrays: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))


# What zipfile raises for damaged and encrypted archives, depending on where the damage is.
_ZIP_ERRORS = (
    zipfile.BadZipFile, EOFError, IndexError, OSError, OverflowError, RuntimeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip


class Archive(zipfile.ZipFile):
    """A zip archive of stored entries, as torch and Keras write them.

    The entries read may not be larger together than the archive, so that no archive of a few bytes
    unpacks to gigabytes, overlapping entries included.

    Arguments:
      expansion: how many times larger than the archive the entries may be together; entries may
        be compressed where it is more than 1.
    """

    def __init__(self, path: Path, *, expansion: int = 1) -> None:
        self._size, self._is_packed = path.stat().st_size, expansion > 1
        self._left = self._size * expansion
        try:
            super().__init__(path)
        except _ZIP_ERRORS as error:
            got = f"a zip archive of {self._size} bytes without its table of entries ({error})"
            raise damaged(got, "the table at the end") from error

    def read_entry(self, name: str) -> bytes:
        try:
            entry = self.getinfo(name)
        except KeyError as error:
            raise damaged(f"no entry {name!r}", "one") from error
        is_stored = entry.compress_type == zipfile.ZIP_STORED
        is_packed = self._is_packed and entry.compress_type == zipfile.ZIP_DEFLATED
        if not is_packed and not (is_stored and entry.file_size == entry.compress_size):
            raise WeightFileError(
                f"got a compressed entry {name!r}, expected stored ones, as torch and Keras write "
                "them. A small archive could fill the memory. Pack it again without compression."
            )
        self._left -= entry.file_size
        if self._left < 0:
            got = f"entries larger than the archive of {self._size} bytes"
            raise damaged(got, "them to fit")
        try:
            return self.read(name)
        except _ZIP_ERRORS as error:
            expected = f"{entry.file_size} bytes with their checksum"
            raise damaged(f"a damaged entry {name!r} ({error})", expected) from error

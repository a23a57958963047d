"""Where indexes and decompressed copies are kept, and how a file gets there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    """Return the user's cache folder: `$PENSTOCK_CACHE`, else `penstock` in the XDG cache."""
    chosen = os.environ.get("PENSTOCK_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def max_cache_bytes() -> int:
    """Return the bound on the decompressed copies in a cache folder: `$PENSTOCK_CACHE_MAX_BYTES`.

    Raises:
      ValueError: that is no number of bytes.

    >>> max_cache_bytes() >> 30
    100
    """
    chosen = os.environ.get("PENSTOCK_CACHE_MAX_BYTES")
    if not chosen:
        return 100 << 30
    try:
        num_bytes = int(chosen)
    except ValueError:
        num_bytes = -1
    if num_bytes < 0:
        raise ValueError(
            f"PENSTOCK_CACHE_MAX_BYTES got {chosen!r}, expected a number of bytes >= 0. It bounds "
            "the decompressed copies of record files that no reader uses. Set e.g. 50000000000."
        )
    return num_bytes


def path_key(path: str | Path) -> str:
    """Return a file name that stands for the absolute path.

    >>> len(path_key("a.tfrecord"))
    32
    """
    # A digest: a path may be longer than a file's name can be.
    return hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:32]


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that it appears whole or not at all, also when two processes write it.

    The last of several writers wins; a reader never sees a part of a file.

    Raises:
      OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only within one file system.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    # Ctrl-C too: no half of a file stays behind.
    except BaseException:
        os.unlink(temporary)
        raise

"""The cache folder: indexes and decompressed copies, each there whole or not at all.

A copy is named after its source's path, size and modification time; `.<copy>.source` beside it
holds the path. Nothing is removed by itself, as only the user knows what is read again: a reader
says where copies are made, and `penstock cache` lists and clears them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# What is being written grows: its time of modification is younger.
_HALF_WRITTEN_SECS = 3600.0


def cache_folder() -> Path:
    """Return the user's cache folder: `$PENSTOCK_CACHE`, else `penstock` in the XDG cache."""
    chosen = os.environ.get("PENSTOCK_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


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


@dataclass(frozen=True, kw_only=True)
class PlainCopy:
    """A decompressed copy of a record file.

    Args:
      path: the copy.
      source: the path of the compressed file, `None` where nothing says it.
      num_bytes: its size.
      is_stale: its source is gone, or has changed since.
    """

    path: Path
    source: str | None
    num_bytes: int
    is_stale: bool


def list_copies(cache_dir: str | Path) -> list[PlainCopy]:
    """Return the copies in a cache folder, by their sources."""
    copies = []
    for path in _list_files(cache_dir):
        # Another process may have removed it since it was listed.
        with contextlib.suppress(FileNotFoundError):
            if not path.name.startswith("."):
                source, num_bytes = _read_source(path), path.stat().st_size
                is_stale = source is not None and path.name != copy_name(source)
                copies.append(
                    PlainCopy(path=path, source=source, num_bytes=num_bytes, is_stale=is_stale)
                )
    return sorted(copies, key=lambda copy: copy.source or copy.path.name)


def clear_copies(cache_dir: str | Path) -> list[PlainCopy]:
    """Remove the copies in a cache folder, and return what was removed.

    A reader that uses one goes on: what is open stays, and what it opens again is made again. What
    a killed process has half written goes after an hour.
    """
    for path in _list_files(cache_dir):
        is_part = path.name.startswith(".") and path.suffix not in (".source", ".penstock-index")
        with contextlib.suppress(FileNotFoundError):
            if is_part and time.time() - path.stat().st_mtime > _HALF_WRITTEN_SECS:
                path.unlink()
    copies = list_copies(cache_dir)
    for copy in copies:
        remove_copy(copy.path)
    return copies


def remove_copy(copy: Path) -> None:
    """Remove a copy and what stands beside it."""
    key = f"{path_key(copy)}.penstock-index"
    beside = (_source_file(copy), copy.parent / f".{copy.name}.penstock-index")
    for path in (copy, *beside, copy.parent.parent / key):
        path.unlink(missing_ok=True)


def copy_name(source: str | Path) -> str | None:
    """Return the name of the copy of a file's present content, `None` if there is no file."""
    try:
        about = os.stat(source)
    except OSError:
        return None
    return f"{path_key(source)}-{about.st_size}-{about.st_mtime_ns}"


def write_source(copy: Path, source: str | Path) -> None:
    """Write the path of a copy's source beside it."""
    _source_file(copy).write_bytes(os.fsencode(os.path.abspath(source)))


def _source_file(copy: Path) -> Path:
    return copy.parent / f".{copy.name}.source"


def _read_source(copy: Path) -> str | None:
    try:
        return os.fsdecode(_source_file(copy).read_bytes())
    except OSError:
        return None


def _list_files(cache_dir: str | Path) -> list[Path]:
    folder = Path(cache_dir) / "plain"
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []

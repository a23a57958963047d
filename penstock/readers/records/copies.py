"""The decompressed copies in a cache folder: a list of them, who uses them, which go first.

A copy is named after its source's path, size and modification time; `.<copy>.source` beside it
holds the path. Each reader names the copies it uses in a file of `in-use/` and holds a lock on it,
which ends with its process, whatever ends that. Without such locks (on Windows) every copy counts
as in use, and nothing is removed automatically.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.readers.records.cache import path_key

try:
    import fcntl as _fcntl
except ImportError:  # Windows
    _fcntl = None
fcntl: Any = _fcntl

# What is being written grows: its time of modification is younger.
_HALF_WRITTEN_SECS = 3600.0


@dataclass(frozen=True, kw_only=True)
class PlainCopy:
    """A decompressed copy of a record file.

    Args:
      path: the copy.
      source: the path of the compressed file, `None` where nothing says it.
      num_bytes: its size.
      last_used: when a reader began to use it, in seconds since the epoch.
      is_in_use: a reader uses it now.
      is_stale: its source is gone, or has changed since.
    """

    path: Path
    source: str | None
    num_bytes: int
    last_used: float
    is_in_use: bool
    is_stale: bool


class CopyUse:
    """The copies that one reader uses. Other processes know it as long as this object lives.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> copy = Path(folder.name, "plain", "0f-3-7")
    >>> copy.parent.mkdir()
    >>> _ = copy.write_bytes(b"abc")
    >>> use = CopyUse()
    >>> use.add(copy)
    >>> [copy.is_in_use for copy in list_copies(folder.name)]
    [True]
    >>> del use
    >>> [copy.is_in_use for copy in list_copies(folder.name)] == [fcntl is None]
    True
    >>> folder.cleanup()
    """

    def __init__(self) -> None:
        self._files: dict[Path, tuple[Path, int]] = {}  # by folder

    def add(self, copy: Path) -> None:
        """Use a copy."""
        about = copy.stat()
        # The time of access alone: the index of the copy is valid for one time of modification.
        os.utime(copy, ns=(time.time_ns(), about.st_mtime_ns))
        if fcntl is None:
            return
        if copy.parent not in self._files:
            self._files[copy.parent] = _create_locked_file(copy.parent.parent / "in-use")
        os.write(self._files[copy.parent][1], f"{copy.name}\n".encode())

    def __del__(
        self, close: Callable[[int], None] = os.close, unlink: Callable[[Path], None] = os.unlink
    ) -> None:
        # The arguments are bound early: at exit the names in `os` are gone.
        for path, descriptor in self._files.values():
            with contextlib.suppress(OSError):
                unlink(path)
            close(descriptor)


def list_copies(cache_dir: str | Path) -> list[PlainCopy]:
    """Return the copies in a cache folder, the least recently used first."""
    folder = Path(cache_dir) / "plain"
    in_use = None if fcntl is None else set(_find_used_names(Path(cache_dir) / "in-use"))
    copies = []
    for path in _list_files(folder):
        if path.name.startswith("."):
            continue
        # Another process may have removed it since it was listed.
        with contextlib.suppress(FileNotFoundError):
            about, source = path.stat(), _read_source(path)
            copies.append(
                PlainCopy(
                    path=path,
                    source=source,
                    num_bytes=about.st_size,
                    last_used=about.st_atime,
                    is_in_use=in_use is None or path.name in in_use,
                    is_stale=source is not None and path.name != copy_name(source),
                )
            )
    return sorted(copies, key=lambda copy: copy.last_used)


def evict(cache_dir: str | Path, max_bytes: int) -> list[PlainCopy]:
    """Remove copies until at most `max_bytes` are left, and return what was removed.

    Those whose source is gone or has changed go first, then the least recently used. A copy in
    use stays, whatever the bound; what a killed process has half written goes after an hour.
    """
    for path in _list_files(Path(cache_dir) / "plain"):
        is_part = path.name.startswith(".") and path.suffix not in (".source", ".penstock-index")
        with contextlib.suppress(FileNotFoundError):
            if is_part and time.time() - path.stat().st_mtime > _HALF_WRITTEN_SECS:
                path.unlink()
    copies, removed = list_copies(cache_dir), []
    num_bytes = sum(copy.num_bytes for copy in copies)
    # The sort is stable: within both groups the least recently used come first.
    for copy in sorted(copies, key=lambda copy: not copy.is_stale):
        # A bound of 0 clears the folder, copies of no bytes included.
        if num_bytes <= max_bytes and not (max_bytes == 0 and copy.num_bytes == 0):
            break
        if not copy.is_in_use:
            remove_copy(copy.path)
            removed.append(copy)
            num_bytes -= copy.num_bytes
    return removed


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


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _create_locked_file(folder: Path) -> tuple[Path, int]:
    """Return a new file that this process holds a lock on, and its descriptor."""
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    descriptor = os.open(folder / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Others see it only now, when it has its lock: they remove files without one.
    os.rename(folder / f".{name}", folder / name)
    return folder / name, descriptor


def _find_used_names(folder: Path) -> Iterator[str]:
    """Yield the names of copies in use; remove the files of processes that have ended."""
    for path in _list_files(folder):
        if path.name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield from file.read().decode().splitlines()
            else:
                path.unlink()

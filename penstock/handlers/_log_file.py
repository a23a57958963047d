"""A log file: whole rows only, and an error at the beginning where it cannot be written."""

from __future__ import annotations

import itertools
import os
from io import FileIO
from pathlib import Path

from penstock._paths import expand_path
from penstock._whole_files import replacing

_PROBE = b"\n" * 4096


class LogFile:
    """A file that grows by whole lines.

    Arguments:
      owner: who writes it, for errors.
      path: where; folders on the way are made.
    """

    def __init__(self, owner: str, path: str | os.PathLike[str]) -> None:
        self.path = expand_path(path)
        self._owner = owner
        self._file: FileIO | None = None

    def open(self, *, is_resumed: bool) -> list[bytes]:
        """Open the file, and return the lines that an earlier part of the run wrote.

        A line that a crash cut off is removed. When nothing is resumed, an old file keeps its rows
        under another name and a new one begins.

        Raises:
          OSError: the file cannot be written, as text that says what to do.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not is_resumed:
                _set_aside(self.path)
            self._file = FileIO(self.path, "ab")
            # Now, and not at the first row: a run of hours should not find out then.
            self._probe(self._file)
            lines = self.lines()
            # A killed process may have left half a line.
            if b"".join(lines) != self.path.read_bytes():
                self.replace(lines)
        except OSError as error:
            self.close()
            raise self.explain(error) from error
        return lines

    def explain(self, error: OSError) -> OSError:
        """Return an error of the same class that names the path and says what to do."""
        return type(error)(
            f"{self._owner} got the path {str(self.path)!r}, expected a file that can be written "
            f"({error.strerror or error}). It holds a row for each reading of the run. Make room "
            "or give permission there, or choose another path."
        )

    def _probe(self, file: FileIO) -> None:
        """Raise if there is no room; a full disk lets a file be opened."""
        size = file.seek(0, os.SEEK_END)
        try:
            _write(file, _PROBE)
        finally:
            if file.seek(0, os.SEEK_END) > size:
                file.truncate(size)

    def lines(self) -> list[bytes]:
        """Return the file's whole lines, blank ones left out."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        return [line for line in lines if line.endswith(b"\n") and line.strip()]

    def append(self, line: bytes) -> None:
        """Write a line; after an error nothing of it is in the file."""
        if self._file is None:
            return
        size = self._file.seek(0, os.SEEK_END)
        try:
            _write(self._file, line)
        except OSError:
            # Half a row would be taken for a damaged file by the run that goes on in it.
            self._file.truncate(size)
            raise

    def replace(self, lines: list[bytes]) -> None:
        """Put other lines in the place of all; a crash leaves the old or the new ones."""
        with replacing(self.path) as temporary:
            temporary.write_bytes(b"".join(lines))
        self.close()
        self._file = FileIO(self.path, "ab")

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(file: FileIO, data: bytes) -> None:
    """Write all of `data`, in one call of the system wherever there is room for it."""
    while data:
        data = data[file.write(data) :]


def _set_aside(path: Path) -> None:
    """Rename a file that holds something to the first free one of `path.1`, `path.2`, ..."""
    if path.is_file() and path.stat().st_size:
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))

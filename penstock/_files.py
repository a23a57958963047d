"""Paths as users write them, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._errors import find_os_error

if TYPE_CHECKING:
    import numpy as np


def expand_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` and `~user` at its beginning replaced by the home folder.

    A shell replaces them only where they begin a word: `--output_dir=~/runs` and a path in a
    program arrive here as they were written.

    >>> expand_path("runs/a").parts
    ('runs', 'a')
    """
    return Path(os.path.expanduser(path))


def cache_folder() -> Path:
    """Return the user's cache folder: `$PENSTOCK_CACHE`, else `penstock` in the XDG cache."""
    chosen = os.environ.get("PENSTOCK_CACHE")
    if chosen:
        return Path(chosen)
    home = expand_path("~")
    # Neither HOME nor a user of this number: `/`, as containers set HOME then.
    home = home if home.is_absolute() else Path("/")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "penstock"


def find_free(path: Path) -> Path:
    """Return the first of `path.1`, `path.2`, ... that does not exist."""
    names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def can_write(path: Path) -> bool:
    """Return whether `replacing` can make a file of this name; its folder may have to be made."""
    if path.exists() and not path.is_file():
        return os.access(path, os.W_OK)
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        # Only the attempt tells: root may write everywhere, but nothing can be made in /proc.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; what is there takes the place of `path` when the block ends well.

    After an error, and after Ctrl-C, the old file is left as it was, and the new one is removed. A
    crash leaves the old one and perhaps a file beside it, whose name begins with a dot and ends in
    `.tmp`.

    What is no file, such as `/dev/null` or a pipe, is written to itself: nothing takes its place.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "notes.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [(each.name, each.read_text()) for each in folder.iterdir()]
    [('notes.txt', 'whole')]
    """
    path = path.absolute()  # whatever the current folder is by then
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    # In the same folder, where a rename cannot leave the file system; a file's name has 255 bytes.
    temporary = path.with_name(f".{path.name[:48]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a file of safetensors, whole and on the disk, or not at all.

    Arguments:
      tensors: contiguous arrays by name.

    Raises:
      OSError: the disk does not take it.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, metadata=dict(metadata))
        except SafetensorError as error:
            if (os_error := find_os_error(error, path)) is None:
                raise
            raise os_error from error
        # The library writes a file that nobody else may read, and renames it.
        if temporary.stat().st_mode != mode:
            temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def append_whole(file: FileIO, data: bytes) -> int:
    """Append bytes to a file, all of them or after an error none; return its size before."""
    size = file.seek(0, os.SEEK_END)
    try:
        # In one call of the system wherever there is room for it.
        while data:
            data = data[file.write(data) :]
    except OSError:
        # Half a row, or half a record, would hide all that follow.
        if file.seek(0, os.SEEK_END) > size:
            file.truncate(size)
            file.seek(size)
        raise
    return size

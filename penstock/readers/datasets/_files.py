"""Finding a data set's files, and reading them out of archives as they were published."""

import gzip
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from penstock.readers._errors import message
from penstock.readers.datasets._registry import DatasetRequest, missing


def find(request: DatasetRequest, names: Sequence[str]) -> Path | None:
    """Return the first of `names` (relative to the folder) that is there."""
    for name in names:
        if (request.folder / name).exists():
            return request.folder / name
    return None


def find_records(request: DatasetRequest) -> list[Path]:
    """Return the TFRecord files TF-Slim's converter makes: `<name>_<split>*.tfrecord`, sorted."""
    split = "validation" if (request.name, request.split) == ("flowers", "test") else request.split
    return sorted(request.folder.glob(f"{request.name}_{split}*.tfrecord"))


def read_plain_or_gzip(path: Path) -> bytes:
    """Return a file's bytes, decompressed when its name ends in `.gz`."""
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return file.read()
    return path.read_bytes()


def find_members(request: DatasetRequest, archives: Sequence[str], how: str) -> Path:
    """Return the archive, or the folder it was unpacked to.

    Raises:
      DatasetNotFoundError: neither is there.
    """
    found = find(request, archives)
    if found is None:
        raise missing(request, archives, how)
    return found


@contextmanager
def members(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the files of a tar or zip archive, or of a folder: name -> opener.

    Nothing is unpacked, so no member can escape anywhere. Names are relative, with `/`.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        yield {file.relative_to(path).as_posix(): _opener(file.open, "rb") for file in files}
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield {name: _opener(archive.open, name) for name in archive.namelist()}
    else:
        with tarfile.open(path) as archive:
            yield {
                member.name: _opener(archive.extractfile, member)
                for member in archive.getmembers()
                if member.isfile()
            }


def _opener(function: Any, argument: Any) -> Any:
    return lambda: function(argument)


def read_member(files: dict[str, Any], ending: str, path: Path) -> bytes:
    """Return the bytes of the member whose name is `ending` or ends in `/` and it.

    Raises:
      ValueError: no such member.
    """
    for name, opener in files.items():
        if name == ending or name.endswith(f"/{ending}"):
            with opener() as file:
                stream: BinaryIO = file
                return stream.read()
    raise ValueError(
        message(
            str(path),
            f"no member {ending!r} among {len(files)}",
            "the archive as it was published",
            "The data set is read from it",
            "Get it again",
        )
    )

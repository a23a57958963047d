"""The archives and files of data sets, as they were published: read within bounds or refused.

The named sets and `convert` read through here, so that the same damage gives the same error: an
`ArchiveError` that names the file, the member, and what to do.

Python's `tarfile` takes a damaged header in the middle for the end of the archive, so that a data
set would be short without a word: `_Header` refuses one.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np

from penstock._errors import message
from penstock.readers._errors import ArchiveError, UnsafeArchiveError

# What the standard library raises while it reads damaged archives.
_FOREIGN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError),
    *(ValueError, LookupError, OverflowError, RuntimeError),
)
_STEP = 1 << 20
_SMALL = 8 << 20
# Text packs to a sixth at best, photographs not at all.
_MAX_RATIO = 32
_IDX = "a whole IDX file of bytes"
# EMNIST's digits, the largest set in MNIST's format and classes, have 280,000.
_MNIST_MAX_IMAGES = 300_000
_MNIST_SIZE = 28
_MNIST_MAX_LABEL = 9
_CIFAR_PIXELS = 3 * 32 * 32
_MAX_PART_BYTES = 255
# What systems take, less what the folder's own path needs.
_MAX_PATH_BYTES = 1024
_MAX_DEPTH = 32
_MAX_NAME_BYTES = 1 << 16
_UNPACKED = "bytes unpacked"
_TAR = "a whole tar archive"
_ZIP = "a whole zip archive"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an archive may hold at most; twice what was published leaves room for others' copies.

    `file_bytes` bounds one file that is read, `total_bytes` all there is in it, unpacked.
    """

    file_bytes: int
    total_bytes: int
    num_entries: int = 10_000

    def unpacked_bytes(self, path: Path) -> int:
        """Return what an archive may unpack to: 32 times as many bytes, or 8 MiB."""
        size = file_size(path)
        check_size(path, size, self.total_bytes)
        return min(self.total_bytes, max(_SMALL, _MAX_RATIO * size))


@dataclass(frozen=True, kw_only=True)
class FileContent:
    """The bytes of a file, or of a member of an archive, with what an error about them says."""

    path: Path
    name: str = ""
    content: bytes = b""

    def error(self, got: str, expected: str, why: str, remedy: str = "") -> ArchiveError:
        return archive_error(self.path, got, expected, why, name=self.name, remedy=remedy)

    def lines(self, encoding: str = "utf-8") -> Iterator[str]:
        r"""Yield the lines without their `\n`, one decoded at a time."""
        for number, line in enumerate(io.BytesIO(self.content), 1):
            try:
                yield line.decode(encoding).removesuffix("\n")
            except UnicodeDecodeError as error:
                raise self.error(
                    f"the byte {line[error.start]:#04x} in line {number}",
                    f"text in {encoding}",
                    "It cannot be decoded",
                ) from error


def archive_error(
    path: Path, got: str, expected: str, why: str, *, name: str = "", remedy: str = ""
) -> ArchiveError:
    # A member may have any name. One with control characters must not hide the error.
    shown = name if name.isprintable() and len(name) <= 200 else repr(name[:200])
    subject = f"'{path}': {shown}" if name else f"'{path}'"
    what = f"Delete '{path}' and get it again"
    error = ArchiveError(message(subject, got, expected, why, remedy or what))
    error.path, error.member = str(path), name or None
    return error


@contextmanager
def blame(path: Path, expected: str, name: str = "") -> Iterator[None]:
    """Turn what the standard library raises for damage into an `ArchiveError`."""
    try:
        yield
    except (ArchiveError, FileNotFoundError, PermissionError):
        raise
    except _FOREIGN as error:
        got = f"{type(error).__name__}: {error}"
        raise archive_error(path, got, expected, "It is damaged or cut off", name=name) from error


def file_size(path: Path) -> int:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        got = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
        why = "The data set is read from it"
        raise archive_error(path, got, "a regular file", why, remedy="Put the file there")
    return status.st_size


def check_size(path: Path, size: int, most: int, what: str = "bytes", name: str = "") -> None:
    """Raise where a file holds more than it may; what is unpacked is not read to its end."""
    if size > most:
        got = f"{size} bytes" if what == "bytes" else f"more than {most} {what}"
        why = "The original is not that large"
        raise archive_error(path, got, f"at most {most}", why, name=name)


class BoundedStream:
    """A stream that is read once, in pieces, and never beyond a number of bytes."""

    def __init__(self, file: io.BufferedIOBase, path: Path, max_bytes: int, expected: str) -> None:
        self._file, self._path, self._max_bytes = file, path, max_bytes
        self._expected, self.num_read = expected, 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        with blame(self._path, self._expected):
            pieces = []
            # In steps: a header may claim any size, and memory is taken only for what there is.
            while size > 0 and (piece := self._file.read(min(size, _STEP))):
                size -= len(piece)
                self.num_read += len(piece)
                check_size(self._path, self.num_read, self._max_bytes, _UNPACKED)
                pieces.append(piece)
            return b"".join(pieces)

    def read_whole(self, size: int) -> bytes:
        content = self.read(size)
        if len(content) != size:
            got = f"{len(content)} of {size} bytes at its end"
            raise archive_error(self._path, got, self._expected, "It is cut off")
        return content

    def fill(self, out: np.ndarray) -> int:
        """Write the next bytes into an array `[n]` uint8, and return how many there were."""
        done = 0
        while piece := self.read(min(len(out) - done, _STEP)):
            out[done : done + len(piece)] = memoryview(piece)
            done += len(piece)
        return done

    def tell(self) -> int:
        return self.num_read

    def seek(self, position: int) -> None:
        """Read on to a position, or to the end if that comes before."""
        if position < self.num_read:
            raise ValueError("a header that leads back")
        while self.read(min(position - self.num_read, _STEP)):
            pass


@contextmanager
def open_stream(path: Path, max_bytes: int, expected: str) -> Iterator[BoundedStream]:
    """Open a regular file, decompressed where it begins as gzip does, to be read once.

    `max_bytes` is what is read of it at most, decompressed.
    """
    file_size(path)  # only a regular file has one
    with open(path, "rb") as raw:
        is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
        file = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        yield BoundedStream(file, path, max_bytes, expected)


def read_file(path: Path, max_bytes: int) -> FileContent:
    """Return a plain file, which may have so many bytes."""
    check_size(path, file_size(path), max_bytes)
    with blame(path, "a file that can be read"), open(path, "rb") as file:
        return FileContent(path=path, content=file.read(max_bytes))


def gunzip(file: FileContent, max_bytes: int) -> FileContent:
    """Return a gzip file inside an archive, decompressed."""
    with blame(file.path, "a whole gzip file", file.name):
        # One more than there may be tells a larger one, which is not read to its end.
        content = gzip.GzipFile(fileobj=io.BytesIO(file.content)).read(max_bytes + 1)
    check_size(file.path, len(content), max_bytes, _UNPACKED, file.name)
    return FileContent(path=file.path, name=file.name, content=content)


CIFAR10_FILES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
CIFAR10_LIMITS = Limits(file_bytes=10_000 * (1 + _CIFAR_PIXELS), total_bytes=400 << 20)
CIFAR100_LIMITS = Limits(file_bytes=50_000 * (2 + _CIFAR_PIXELS), total_bytes=400 << 20)


def read_mnist(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images `[N, 28, 28, 1]` and labels `[N]`, uint8, of IDX files, plain or gzipped."""
    images = read_idx(images_path, (_MNIST_SIZE, _MNIST_SIZE))
    labels = read_idx(labels_path, ())
    if len(images) != len(labels):
        raise archive_error(
            labels_path,
            f"{len(labels)} labels",
            f"{len(images)}, one for each image in '{images_path.name}'",
            "The files do not belong together",
            remedy=f"Delete both in '{labels_path.parent}' and get them again",
        )
    if labels.max() > _MNIST_MAX_LABEL:
        got = f"label {labels.max()} at {int(labels.argmax())}"
        raise archive_error(labels_path, got, "labels 0 to 9", "There are ten classes")
    return images[..., np.newaxis], labels


def read_idx(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Return the array `[N, *shape]` of an IDX file of unsigned bytes, plain or gzipped.

    Never more is read than its header declares.
    """
    num_axes = 1 + len(shape)
    header_size = 4 + 4 * num_axes
    max_bytes = header_size + _MNIST_MAX_IMAGES * math.prod(shape)
    with open_stream(path, max_bytes + 1, _IDX) as stream:
        header = stream.read(header_size)
        if len(header) < header_size or header[:4] != bytes((0, 0, 8, num_axes)):
            got = f"the first bytes '{header.hex()}'"
            raise archive_error(path, got, f"{_IDX} with {num_axes} axes", "It is another file")
        header_shape = struct.unpack(f">{num_axes}I", header[4:])
        if header_shape[1:] != tuple(shape) or not 0 < header_shape[0] <= _MNIST_MAX_IMAGES:
            raise archive_error(
                path,
                f"shape {list(header_shape)}",
                f"{[f'1 to {_MNIST_MAX_IMAGES}', *shape]}".replace("'", ""),
                "The original has 60,000 or 10,000 images of 28 x 28",
            )
        values = np.empty(math.prod(header_shape), np.uint8)
        size = stream.fill(values)
        # Also makes gzip check its sum, which stands at the end.
        is_longer = bool(stream.read(1))
    if size < values.size or is_longer:
        got = f"more than {size} bytes" if is_longer else f"{size} bytes"
        why = f"Its header says shape {list(header_shape)}"
        raise archive_error(path, f"{got} behind its header", f"{_IDX}, {values.size} bytes", why)
    return values.reshape(header_shape)


def read_cifar(
    file: FileContent, num_labels: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return images `[N, 32, 32, 3]` and labels `[N]`, uint8, of a file of CIFAR's binary archives.

    They are views: a record is its labels, then the red, green and blue planes. The last label is
    taken, one of `num_classes`; CIFAR-100's first label is one of 20.
    """
    record_size, size = num_labels + _CIFAR_PIXELS, len(file.content)
    if size == 0 or size % record_size:
        is_whole_train = (file.name or file.path.name).rpartition("/")[2] == "train.bin"
        published = (50_000 if is_whole_train else 10_000) * record_size
        raise file.error(
            f"{size} bytes",
            f"{published} as published, or another multiple of {record_size}",
            f"An image and its labels are {record_size} bytes, and the file ends inside one",
        )
    records = np.frombuffer(file.content, np.uint8).reshape(-1, record_size)
    for column, classes in enumerate([20, num_classes][-num_labels:]):
        if (labels := records[:, column]).max() >= classes:
            row = int(labels.argmax())
            got = f"label {labels[row]} of image {row}"
            raise file.error(got, f"0 to {classes - 1}", f"There are {classes} classes")
    planes = records[:, num_labels:].reshape(-1, 3, 32, 32)
    return planes.transpose(0, 2, 3, 1), records[:, num_labels - 1]


def read_files(
    path: str | os.PathLike[str], is_wanted: Callable[[str], object], limits: Limits
) -> Iterator[tuple[str, FileContent]]:
    """Yield name and content of the wanted files of an archive or a folder, by one pass over it.

    Nothing is unpacked, so no member can escape anywhere. A folder's files come sorted.
    """
    seen: set[str] = set()
    for entry in iterate_entries(Path(path), limits):
        if entry.kind == "folder" or not is_wanted(entry.name):
            continue
        if entry.kind != "file" or entry.name in seen:
            got = "two files of that name" if entry.kind == "file" else "a link or device"
            why = "The original holds one"
            raise archive_error(entry.path, got, "one file", why, name=entry.member)
        seen.add(entry.name)
        content = _read_content(entry, limits)
        yield entry.name, FileContent(path=entry.path, name=entry.member, content=content)


def _read_content(entry: Entry, limits: Limits) -> bytes:
    check_size(entry.path, entry.size, limits.file_bytes, name=entry.member)
    return entry.read()


def read_by_name(
    path: str | os.PathLike[str], endings: Sequence[str], limits: Limits
) -> dict[str, FileContent]:
    """Return the files whose names are `endings`, or end in `/` and one, by ending.

    Of a folder that holds all of them itself, no other is looked at.
    """
    # As somebody may have unpacked the archive: file by file, without its folder.
    direct = {ending: Path(path, ending) for ending in endings}
    if all(file.is_file() for file in direct.values()):
        return {ending: read_file(file, limits.file_bytes) for ending, file in direct.items()}
    files: dict[str, FileContent] = {}

    def find_endings(name: str) -> list[str]:
        return [end for end in endings if f"/{name}".endswith(f"/{end}")]

    for name, file in read_files(path, find_endings, limits):
        for ending in find_endings(name):
            if ending in files:
                got = f"a second file '{ending}'"
                raise file.error(got, "one file", "The original holds one")
            files[ending] = file
    if missing := [ending for ending in endings if ending not in files]:
        got = f"no file '{missing[0]}'" if len(missing) == 1 else f"no files {missing}"
        why = "It is another archive, or not all of it"
        raise archive_error(Path(path), got, "the original's files", why)
    return files


def unpack(path: str | Path, folder: str | Path, limits: Limits) -> None:
    """Unpack the regular files of an archive into `folder`, with plain permissions.

    Every member is checked, and the archive read to its end, before the first is written.
    """
    path = Path(path)
    for entry in iterate_entries(path, limits):
        _check_place(entry, path)
    for entry in iterate_entries(path, limits):
        if entry.kind == "file":
            target = Path(folder, *PurePosixPath(entry.name).parts)
            content = _read_content(entry, limits)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                why = "One of them would lie within the other"
                got = "a file and a folder of one name"
                raise archive_error(path, got, "one of them", why, name=entry.name) from error


def _check_place(entry: Entry, path: Path) -> None:
    parts = PurePosixPath(entry.name).parts
    is_long = (
        len(os.fsencode(entry.name)) > _MAX_PATH_BYTES
        or len(parts) > _MAX_DEPTH
        or any(len(os.fsencode(part)) > _MAX_PART_BYTES for part in parts)
    )
    if entry.name.startswith("/") or ".." in parts or "\\" in entry.name:
        got = "a path outside the folder"
    elif entry.kind == "other":
        got = "a link or device"
    elif is_long or "\0" in entry.name or (entry.kind == "file" and not parts):
        got = "a name no file can have"
    else:
        got = None
    if got is not None:
        error = UnsafeArchiveError(
            f"'{path}': member {entry.name[:200]!r} got {got}, expected regular files below the "
            "folder. Unpacking it could write anywhere. Do not trust this archive; delete it and "
            "get the original."
        )
        error.path, error.member = str(path), entry.name
        raise error


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of an archive, or something else that stands there: a link, a device.

    `path` and `member` are what an error names: the archive and the name in it, or the file where
    it is a folder's, and `""`. `size` is what the header says. `read` is called before the next
    entry is asked for.
    """

    path: Path
    name: str
    size: int
    kind: Literal["file", "folder", "other"]
    read: Callable[[], bytes]
    member: str


def iterate_entries(path: Path, limits: Limits) -> Iterator[Entry]:
    """Yield the entries of a tar or `.zip` archive in its order, or a folder's files, sorted."""
    if path.is_dir():
        yield from _iterate_folder(path)
        return
    entries = _iterate_zip if path.suffix == ".zip" else _iterate_tar
    for number, entry in enumerate(entries(path, limits), 1):
        check_size(path, number, limits.num_entries, "entries")
        yield entry


def _iterate_folder(path: Path) -> Iterator[Entry]:
    for file in sorted(path.rglob("*")):
        if file.is_file():
            # As in the archive, whose members lie in that folder.
            name = f"{path.name}/{file.relative_to(path).as_posix()}"
            size = file.stat().st_size

            def read(file: Path = file, size: int = size) -> bytes:
                return read_file(file, size).content

            yield Entry(path=file, name=name, member="", size=size, kind="file", read=read)


def _iterate_zip(path: Path, limits: Limits) -> Iterator[Entry]:
    max_bytes, num_bytes = limits.unpacked_bytes(path), 0
    with blame(path, _ZIP), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            num_bytes += info.file_size
            check_size(path, num_bytes, max_bytes, _UNPACKED)
            mode = info.external_attr >> 16
            # Archives that were made on Windows have no mode.
            is_plain = stat.S_IFMT(mode) in (0, stat.S_IFREG)
            kind = "folder" if info.is_dir() else "file" if is_plain else "other"
            yield Entry(
                path=path,
                name=info.filename,
                member=info.filename,
                size=info.file_size,
                kind=kind,
                read=partial(_read_zip_member, archive, info, path),
            )


def _read_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    packing = info.compress_type
    if info.flag_bits & 1 or packing not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        got = "an encrypted file" if info.flag_bits & 1 else f"the compression {packing}"
        expected, why = "a stored or deflated file", "The original's files are"
        raise archive_error(path, got, expected, why, name=info.filename)
    # In pieces: `read()` decompresses whatever there is, whatever size the header says.
    with blame(path, "a whole file", info.filename), archive.open(info) as file:
        content = b"".join(iter(lambda: file.read(_STEP), b""))
        if len(content) != info.file_size:
            raise EOFError(f"{len(content)} of {info.file_size} bytes")
        return content


class _Header(tarfile.TarInfo):
    """A header that is whole, or an error: only zeros are the end of an archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:  # pyright: ignore
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # pyright: ignore
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} in the middle") from error


def _iterate_tar(path: Path, limits: Limits) -> Iterator[Entry]:
    with blame(path, _TAR), open_stream(path, limits.unpacked_bytes(path), _TAR) as stream:

        def read_header(size: int) -> bytes:
            if size > _MAX_NAME_BYTES:
                raise tarfile.ReadError(f"a name or its like of {size} bytes")
            return stream.read(size)

        file: Any = SimpleNamespace(read=read_header, tell=stream.tell, seek=stream.seek)
        # A name need not be UTF-8: surrogates keep its bytes, so that no two names become one.
        archive: Any = tarfile.TarFile(
            fileobj=file, tarinfo=_Header, encoding="utf-8", errors="surrogateescape"
        )
        while (info := archive.next()) is not None:
            archive.members.clear()  # kept, a hundred thousand would take as many kilobytes
            is_file = info.isreg() and not info.issparse()
            kind = "folder" if info.isdir() else "file" if is_file else "other"
            name, size = info.name.removeprefix("./"), info.size
            read = partial(stream.read_whole, size)
            yield Entry(path=path, name=name, member=name, size=size, kind=kind, read=read)
        if any(stream.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError("an end in the middle")
        # The checksum of a gzip file stands at its end.
        while stream.read(_STEP):
            pass

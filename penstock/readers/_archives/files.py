"""What is read of a file or an archive: its bounds, its bytes, and the errors that name it."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock._errors import message
from penstock.readers._errors import ArchiveError

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
_MAX_IMAGES = 300_000
_SIZE = 28
_MAX_LABEL = 9
_CIFAR_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an archive may hold at most; twice what was published leaves room for others' copies.

    Args:
      file_bytes: of one file that is read.
      total_bytes: of all there is in it, unpacked.
      num_entries: of files, folders and all else.
    """

    file_bytes: int
    total_bytes: int
    num_entries: int = 10_000

    def unpacked_bytes(self, packed_bytes: int) -> int:
        """Return what an archive of so many bytes may unpack to: 32 times as much, or 8 MiB.

        >>> limits = Limits(file_bytes=1 << 20, total_bytes=1 << 30)
        >>> [limits.unpacked_bytes(size) for size in (10, 1 << 20, 1 << 30)]
        [8388608, 33554432, 1073741824]
        """
        return min(self.total_bytes, max(_SMALL, _MAX_RATIO * packed_bytes))


@dataclass(frozen=True, kw_only=True)
class FileContent:
    """The bytes of a file or a member, with what an error about them says.

    Args:
      path: the file, or the archive.
      name: the member of the archive, `""` for a file.
      content: its bytes.
    """

    path: Path
    name: str = ""
    content: bytes = b""

    def error(self, got: str, expected: str, why: str, remedy: str = "") -> ArchiveError:
        return archive_error(self.path, got, expected, why, name=self.name, remedy=remedy)

    def is_named(self, name: str) -> bool:
        """Return whether this is the last part of its name."""
        return (self.name or self.path.name).rpartition("/")[2] == name

    def lines(self, encoding: str = "utf-8") -> Iterator[str]:
        r"""Yield the lines without their `\n`, one decoded at a time.

        Raises:
          ArchiveError: a line is no text.
        """
        for number, line in enumerate(io.BytesIO(self.content), 1):
            try:
                yield line.decode(encoding).removesuffix("\n")
            except UnicodeDecodeError as error:
                raise self.error(
                    f"the byte {line[error.start]:#04x} in line {number}",
                    f"text in {encoding}",
                    "It cannot be decoded",
                ) from error

    def text(self) -> str:
        """Return the text.

        Raises:
          ArchiveError: the bytes are no text.
        """
        return "\n".join(self.lines())


def archive_error(
    path: Path, got: str, expected: str, why: str, *, name: str = "", remedy: str = ""
) -> ArchiveError:
    # A member may have any name. One with control characters must not hide the error.
    shown = name if name.isprintable() and len(name) <= 200 else repr(name[:200])
    thing = f"'{path}': {shown}" if name else f"'{path}'"
    what = f"Delete '{path}' and get it again"
    error = ArchiveError(message(thing, got, expected, why, remedy or what))
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
    """Return the size of a regular file.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: it is something else; to open a pipe would wait for ever.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        got = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
        why = "The data set is read from it"
        raise archive_error(path, got, "a regular file", why, remedy="Put the file there")
    return status.st_size


def check_size(path: Path, size: int, limits: Limits) -> None:
    if size > limits.total_bytes:
        got, expected = f"{size} bytes", f"at most {limits.total_bytes}"
        raise archive_error(path, got, expected, "The original is not that large")


class BoundedStream:
    """A stream that is read once, in pieces, and never beyond a number of bytes."""

    def __init__(self, file: io.BufferedIOBase, path: Path, max_bytes: int, expected: str) -> None:
        self._file, self._path, self._max_bytes, self._left = file, path, max_bytes, max_bytes
        self._expected = expected

    def read_up_to(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end.

        Raises:
          ArchiveError: they are damaged, or more than there may be.
        """
        with blame(self._path, self._expected):
            pieces = []
            # In steps: a header may claim any size, and memory is taken only for what there is.
            while size and (piece := self._file.read(min(size, _STEP))):
                size -= len(piece)
                self._left -= len(piece)
                if self._left < 0:
                    raise archive_error(
                        self._path,
                        f"more than {self._max_bytes} bytes unpacked",
                        f"at most {self._max_bytes}",
                        "The original is not that large, and would fill the memory",
                    )
                pieces.append(piece)
            return b"".join(pieces)

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes.

        Raises:
          ArchiveError: there are fewer, or `read_up_to` raises it.
        """
        content = self.read_up_to(size)
        if len(content) < size:
            got = f"{len(content)} of {size} bytes at its end"
            raise archive_error(self._path, got, self._expected, "It is cut off")
        return content

    def fill(self, out: np.ndarray) -> int:
        """Write the next bytes into an array `[n]` uint8, and return how many there were."""
        done = 0
        while piece := self.read_up_to(min(len(out) - done, _STEP)):
            out[done : done + len(piece)] = memoryview(piece)
            done += len(piece)
        return done

    def skip(self, size: int) -> None:
        while size:
            size -= len(self.read(min(size, _STEP)))

    def skip_to_end(self) -> None:
        while self.read_up_to(_STEP):
            pass


@contextmanager
def open_stream(
    path: Path, max_bytes: int | None, expected: str, *, limits: Limits | None = None
) -> Iterator[BoundedStream]:
    """Open a regular file, decompressed where it begins as gzip does, to be read once.

    Args:
      path: the file.
      max_bytes: what is read of it at most, decompressed; `limits` say it by the size without.
      expected: what an error says it should be.
      limits: see `max_bytes`.
    """
    size = file_size(path)
    if limits is not None:
        check_size(path, size, limits)
    if max_bytes is None:
        max_bytes = size if limits is None else limits.unpacked_bytes(size)
    with open(path, "rb") as raw, _open_decompressed(raw) as file:
        yield BoundedStream(file, path, max_bytes, expected)


def _open_decompressed(raw: io.BufferedReader) -> io.BufferedIOBase:
    is_gzip = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if is_gzip else raw


def read_file(path: Path, max_bytes: int) -> FileContent:
    """Return a plain file, which may have so many bytes.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: it is larger, or no regular file.
    """
    size = file_size(path)
    if size > max_bytes:
        raise archive_error(
            path, f"{size} bytes", f"at most {max_bytes}", "The original is not that large"
        )
    with blame(path, "a file that can be read"), open(path, "rb") as file:
        return FileContent(path=path, content=file.read(max_bytes))


def gunzip(file: FileContent, max_bytes: int) -> FileContent:
    """Return a gzip file inside an archive, decompressed.

    Raises:
      ArchiveError: it is damaged, or holds more than `max_bytes`.
    """
    with blame(file.path, "a whole gzip file", file.name):
        # One more than there may be tells a larger one, which is not read to its end.
        content = gzip.GzipFile(fileobj=io.BytesIO(file.content)).read(max_bytes + 1)
    if len(content) > max_bytes:
        got = f"more than {max_bytes} bytes unpacked"
        raise file.error(got, f"at most {max_bytes}", "The original is not that large")
    return FileContent(path=file.path, name=file.name, content=content)


CIFAR10_LIMITS = Limits(file_bytes=10_000 * (1 + _CIFAR_PIXELS), total_bytes=400 << 20)
CIFAR100_LIMITS = Limits(file_bytes=50_000 * (2 + _CIFAR_PIXELS), total_bytes=400 << 20)


def read_mnist(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images `[N, 28, 28]` and labels `[N]`, uint8, of IDX files, plain or gzipped.

    Raises:
      FileNotFoundError: one is not there.
      ArchiveError: one is damaged or another file, or they do not belong together.
    """
    images = read_idx(images_path, (_SIZE, _SIZE))
    labels = read_idx(labels_path, ())
    if len(images) != len(labels):
        raise archive_error(
            labels_path,
            f"{len(labels)} labels",
            f"{len(images)}, one for each image in '{images_path.name}'",
            "The files do not belong together",
            remedy=f"Delete both in '{labels_path.parent}' and get them again",
        )
    if labels.max() > _MAX_LABEL:
        got = f"label {labels.max()} at {int(labels.argmax())}"
        raise archive_error(labels_path, got, "labels 0 to 9", "There are ten classes")
    return images, labels


def read_idx(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Return the array `[N, *shape]` of an IDX file of unsigned bytes, plain or gzipped.

    Never more is read than its header declares.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: it is damaged, or holds an array of another shape, or none.
    """
    num_axes = 1 + len(shape)
    header_size = 4 + 4 * num_axes
    max_bytes = header_size + _MAX_IMAGES * math.prod(shape)
    with open_stream(path, max_bytes + 1, _IDX) as stream:
        header = stream.read_up_to(header_size)
        if len(header) < header_size or header[:4] != bytes((0, 0, 8, num_axes)):
            got = f"the first bytes '{header.hex()}'"
            raise archive_error(path, got, f"{_IDX} with {num_axes} axes", "It is another file")
        found = struct.unpack(f">{num_axes}I", header[4:])
        if found[1:] != tuple(shape) or not 0 < found[0] <= _MAX_IMAGES:
            raise archive_error(
                path,
                f"shape {list(found)}",
                f"{[f'1 to {_MAX_IMAGES}', *shape]}".replace("'", ""),
                "The original has 60,000 or 10,000 images of 28 x 28",
            )
        values = np.empty(math.prod(found), np.uint8)
        size = stream.fill(values)
        # Also makes gzip check its sum, which stands at the end.
        is_longer = bool(stream.read_up_to(1))
    if size < values.size or is_longer:
        got = f"more than {size} bytes" if is_longer else f"{size} bytes"
        why = f"Its header says shape {list(found)}"
        raise archive_error(path, f"{got} behind its header", f"{_IDX}, {values.size} bytes", why)
    return values.reshape(found)


def read_cifar_records(file: FileContent, num_labels: int, num_classes: int) -> np.ndarray:
    """Return the records `[N, num_labels + 3072]` uint8 of a file of CIFAR's binary archives.

    A record is its labels, then the red, green and blue planes. The last label is one of
    `num_classes`; CIFAR-100's first label is one of 20.

    Raises:
      ArchiveError: a record is cut, there is none, or a label is out of range.
    """
    record_size, size = num_labels + _CIFAR_PIXELS, len(file.content)
    if size == 0 or size % record_size:
        published = (50_000 if file.is_named("train.bin") else 10_000) * record_size
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
    return records

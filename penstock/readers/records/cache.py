"""The cache folder: indexes and decompressed copies, each there whole or not at all.

A copy is named after its source's path, size and modification time; `.<copy>.source` beside it
holds the path. Nothing is removed by itself, as only the user knows what is read again: a reader
says where copies are made, and `penstock cache` lists and clears them.

GZIP and ZLIB streams have no random access. So a compressed file is decompressed once, to
`<cache folder>/plain/`, where later runs and other processes find it: shuffling then costs the same
as for a plain file, at the price of disk space. A copy is valid for one size and modification time
of its source; a stale copy is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from penstock._errors import check_known
from penstock._files import cache_folder, replacing
from penstock.readers._errors import RecordError
from penstock.readers.records.framing import TFRECORD, WINDOW_BITS, Framing, FramingError

# What is being written grows: its time of modification is younger.
_HALF_WRITTEN_SECS = 3600.0
Compression = Literal["auto", "", "GZIP", "ZLIB"]
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RecordFormat:
    """How the files are framed, compressed and cached.

    Args:
      framing: `TFRECORD` or `OFRECORD`.
      compression: `"auto"` looks at the first bytes; `""`, `"GZIP"` and `"ZLIB"` are TensorFlow's.
      cache_dir: folder for indexes and decompressed copies; `None` keeps indexes beside the
        files and copies in the user's cache folder.
      max_plain_bytes: bound on one decompressed file.
    """

    framing: Framing = TFRECORD
    compression: Compression = "auto"
    cache_dir: str | Path | None = None
    max_plain_bytes: int = 64 << 30

    def __post_init__(self) -> None:
        why = "These are the whole-file compressions of TFRecord."
        check_known("compression", self.compression, get_args(Compression), why, ValueError)


def path_key(path: str | Path) -> str:
    """Return a file name that stands for the absolute path."""
    # A digest: a path may be longer than a file's name can be.
    return hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class PlainCopy:
    """A decompressed copy of a record file; it is stale where its source is gone or has changed."""

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


def detect_compression(head: bytes, framing: Framing = TFRECORD) -> Literal["", "GZIP", "ZLIB"]:
    """Return the compression a file that starts with `head` has; plain where nothing fits."""
    # A bare length cannot be told from other bytes, so nothing is guessed.
    if not framing.has_crc:
        return ""
    try:
        framing.payload_length(head[: framing.header_bytes])
    except FramingError:
        if head[:3] == b"\x1f\x8b\x08":
            return "GZIP"
        # RFC 1950: method 8, a window of 32 KiB at most, and a check that makes it a multiple of
        # 31.
        is_deflate = len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7
        if is_deflate and int.from_bytes(head[:2], "big") % 31 == 0:
            return "ZLIB"
    return ""


def open_plain_copy(
    path: str | Path, compression: Literal["GZIP", "ZLIB"], form: RecordFormat
) -> tuple[int, str, RecordError | None]:
    """Return an open descriptor of the decompressed file, its path, and the damage if any.

    A stream that is damaged gives what came before the damage, in a file without a name; one that
    does not begin with a record gives nothing.
    """
    folder = Path(form.cache_dir or cache_folder()) / "plain"
    copy = folder / (copy_name(path) or path_key(path))
    # Opened without a look: another process may remove it after one.
    with contextlib.suppress(FileNotFoundError):
        return os.open(copy, os.O_RDONLY), str(copy), None
    # None that begins with a dot: another process may be writing it.
    for stale in {*folder.glob(f"{path_key(path)}-*")} - {copy}:
        remove_copy(stale)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, damage = -1, None
    with contextlib.ExitStack() as failure:
        with contextlib.suppress(_NoCopy), replacing(copy) as temporary:
            # Its source may be private.
            temporary.touch(0o600)
            with open(temporary, "wb") as file:
                damage = _write_plain(file, path, compression, form)
            descriptor = os.open(temporary, os.O_RDONLY)
            os.fsync(descriptor)  # before it takes its name: it is whole after a power failure too
            failure.callback(os.close, descriptor)
            if damage is not None:
                raise _NoCopy
        if damage is None:
            _source_file(copy).write_bytes(os.fsencode(os.path.abspath(path)))
        failure.pop_all()
    return descriptor, str(copy if damage is None else path), damage


class _NoCopy(Exception):
    """What was written is read, as its descriptor is open, but takes no name."""


def _write_plain(
    file: BinaryIO, path: str | Path, compression: Literal["GZIP", "ZLIB"], form: RecordFormat
) -> RecordError | None:
    """Decompress a file up to its damage, which is returned."""
    head: bytes | None = b""
    for piece in _decompress(path, compression, form.max_plain_bytes):
        if isinstance(piece, RecordError):
            return piece
        # What does not begin with a record is no record file: nothing of it is worth a copy.
        head = None if head is None else head + piece
        if head is not None and len(head) >= form.framing.header_bytes:
            try:
                form.framing.payload_length(head[: form.framing.header_bytes])
            except FramingError as error:
                return error.at(path, offset=0, index=0)
            head = None
        file.write(piece)
    return None


def _decompress(
    path: str | Path, compression: Literal["GZIP", "ZLIB"], max_plain_bytes: int
) -> Iterator[bytes | RecordError]:
    """Yield the stream's content in pieces; at damage, an error of ours as the last piece."""
    total, consumed = 0, 0
    engine = zlib.decompressobj(WINDOW_BITS[compression])
    with open(path, "rb") as file:
        pending = b""
        while True:
            pending = pending or file.read(_PIECE_BYTES)
            if not pending:
                yield engine.flush()
                if not engine.eof:
                    yield _stream_error(path, compression, "the end of the file", consumed)
                return
            # Streams may be joined end to end: `cat a.gz b.gz` is a file of both.
            if engine.eof:
                engine = zlib.decompressobj(WINDOW_BITS[compression])
            # Kept, as an engine that met damage gives nothing: all before the damage is read again.
            before = engine.copy()
            try:
                piece = engine.decompress(pending, _PIECE_BYTES)
            except zlib.error as error:
                piece, num_good = _decompress_before_damage(before, pending)
                yield piece
                yield _stream_error(path, compression, str(error), consumed + num_good)
                return
            rest = engine.unused_data if engine.eof else engine.unconsumed_tail
            consumed, pending = consumed + len(pending) - len(rest), rest
            total += len(piece)
            # A file of a kilobyte may hold a gigabyte: it must not fill the disk.
            if total > max_plain_bytes:
                raise FramingError(
                    f"{compression} stream got more than {max_plain_bytes} bytes, expected at most "
                    f"{max_plain_bytes}. Raise max_plain_bytes if the file is what you think it is."
                ).at(path, offset=consumed)
            yield piece


def _decompress_before_damage(engine: zlib._Decompress, data: bytes) -> tuple[bytes, int]:
    """Return what the bytes before the damage give, and how many they are."""
    pieces = []
    # Byte by byte: a record that ends right before the damage is whole.
    with contextlib.suppress(zlib.error):
        for at in range(len(data)):
            pieces.append(engine.decompress(data[at : at + 1]))
    return b"".join(pieces), len(pieces)


def _stream_error(path: str | Path, compression: str, got: str, offset: int) -> RecordError:
    return FramingError(
        f"{compression} stream got {got}, expected a whole stream. The file is damaged or not "
        "compressed this way. Write it again, or pass on_error='skip' to leave the rest of it out."
    ).at(path, offset=offset)

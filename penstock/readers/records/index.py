"""The index of a record file: where each record starts, found once and kept beside the file."""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock._checksums import crc32c
from penstock.readers._errors import RecordError
from penstock.readers.records.cache import cache_folder, path_key, write_atomically
from penstock.readers.records.framing import Framing, FramingError

_MAGIC = b"PSINDEX1"
# Magic, file size, mtime in ns, number of bounds, has_crc, CRC of the bounds.
_HEAD = struct.Struct("<8sQqQBI")
_BLOCK_BYTES = 1 << 16
_SMALL_RECORD_BYTES = 1 << 13
# Records of as many lengths must not fill the memory with headers.
_MAX_KNOWN_HEADERS = 1 << 14
# A smaller file is indexed faster than its index is opened.
_MIN_KEPT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """Where the records of one file lie.

    Args:
      bounds: byte offsets, `[N + 1]` int64: record `i` is the bytes `bounds[i]:bounds[i + 1]`.
      damage: why the index ends before the file does, `None` where it does not. A damaged
        length hides everything after it, so a damaged file ends there.
      copy: the decompressed copy that holds the records, `None` where it is the file itself.
    """

    bounds: np.ndarray
    damage: RecordError | None = None
    copy: str | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1


def build_index(descriptor: int, framing: Framing, path: str | Path) -> RecordIndex:
    """Walk the headers of an open, uncompressed record file.

    Only headers are read (and, for TFRecord, their checksums verified); payloads are verified
    when they are read.
    """
    size = os.fstat(descriptor).st_size
    header_bytes, overhead = framing.header_bytes, framing.overhead_bytes
    bounds, offset, damage = [0], 0, None
    window, window_start, window_bytes = b"", 0, _BLOCK_BYTES
    # By verified header: most files have few lengths, and a checksum costs more than a look-up.
    lengths: dict[bytes, int] = {}
    try:
        while offset < size:
            at = offset - window_start
            if at + header_bytes > len(window):
                window = os.pread(descriptor, window_bytes, offset)
                window_start, at = offset, 0
            header = window[at : at + header_bytes]
            length = lengths.get(header)
            if length is None:
                length = framing.payload_length(header)
                if len(lengths) < _MAX_KNOWN_HEADERS:
                    lengths[header] = length
            end = offset + length + overhead
            if end > size:
                raise FramingError(
                    f"{framing.name} record got {size - offset} of {length + overhead} bytes, "
                    "expected a whole record. The file ends inside it. Write the file again, or "
                    "pass on_error='skip' to leave the end out."
                )
            # Small records are walked through a window of 64 KiB, large ones with a read for each
            # header: a read costs about a microsecond, copying payloads costs more.
            window_bytes = _BLOCK_BYTES if length < _SMALL_RECORD_BYTES else header_bytes
            offset = end
            bounds.append(offset)
    except FramingError as error:
        damage = error.at(path, offset=offset, index=len(bounds) - 1)
    return RecordIndex(bounds=np.asarray(bounds, np.int64), damage=damage)


def load_index(
    descriptor: int,
    framing: Framing,
    path: str | Path,
    *,
    place: str | Path | None,
    cache_dir: str | Path | None = None,
) -> RecordIndex:
    """Return the index of an open file: the one kept, if it is of this very file, or a new one.

    `path` is the file as errors name it, `place` the plain file the index is kept for (the
    decompressed copy of a compressed one), `None` to keep none.

    An index is kept beside the file as `.<name>.penstock-index`, or in `cache_dir`, or, where
    neither can be written, in the user's cache folder. It belongs to the file of that size and
    modification time. Files below 1 MiB and damaged files keep none.
    """
    stat = os.fstat(descriptor)
    if place is None or stat.st_size < _MIN_KEPT_BYTES:
        return build_index(descriptor, framing, path)
    places = _list_places(Path(place), cache_dir)
    for kept_at in places:
        kept = _read_kept(kept_at, stat, framing)
        if kept is not None:
            return kept
    index = build_index(descriptor, framing, path)
    if index.damage is None:
        packed = _pack(index, stat, framing)
        for kept_at in places:
            # Data often lies in a read-only folder: then the next place is tried.
            with contextlib.suppress(OSError):
                write_atomically(kept_at, lambda file: file.write(packed))
                break
    return index


def _list_places(path: Path, cache_dir: str | Path | None) -> list[Path]:
    in_folder = f"{path_key(path)}.penstock-index"
    if cache_dir is not None:
        return [Path(cache_dir) / in_folder]
    return [path.parent / f".{path.name}.penstock-index", cache_folder() / "index" / in_folder]


def _pack(index: RecordIndex, stat: os.stat_result, framing: Framing) -> bytes:
    # Little endian on every machine: the folder may be shared.
    bounds = index.bounds.astype("<i8").tobytes()
    crc = crc32c(bounds)
    head = (stat.st_size, stat.st_mtime_ns, len(index.bounds), framing.has_crc, crc)
    return _HEAD.pack(_MAGIC, *head) + bounds


def _read_kept(place: Path, stat: os.stat_result, framing: Framing) -> RecordIndex | None:
    """Return the index in `place`, or `None` if it is missing, damaged or of another file."""
    try:
        data = place.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, size, mtime_ns, count, has_crc, crc = _HEAD.unpack_from(data)
    bounds = data[_HEAD.size :]
    is_fitting = (magic, size, mtime_ns) == (_MAGIC, stat.st_size, stat.st_mtime_ns)
    is_whole = len(bounds) == 8 * count and crc32c(bounds) == crc
    if not (is_fitting and is_whole and bool(has_crc) == framing.has_crc):
        return None
    return RecordIndex(bounds=np.frombuffer(bounds, "<i8").astype(np.int64))

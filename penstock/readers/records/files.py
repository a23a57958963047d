"""Random access to the records of many files: their indexes, and the reader over them."""

from __future__ import annotations

import bisect
import contextlib
import copy
import itertools
import logging
import os
import struct
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from penstock._checksums import crc32c
from penstock._files import cache_folder, replacing
from penstock.readers._errors import RecordError, note
from penstock.readers._order import RecordOrder
from penstock.readers._random_access_reader import Decoder, RandomAccessReader
from penstock.readers._read_ahead import check_workers
from penstock.readers._read_options import ReadOptions
from penstock.readers.records.cache import (
    RecordFormat,
    detect_compression,
    list_copies,
    open_plain_copy,
    path_key,
    remove_copy,
)
from penstock.readers.records.framing import Framing, FramingError

_LOGGER = logging.getLogger("penstock")
_MAGIC = b"PSINDEX1"
# Magic, file size, mtime in ns, number of bounds, has_crc, CRC of the bounds.
_HEAD = struct.Struct("<8sQqQBI")
_BLOCK_BYTES = 1 << 16
_SMALL_RECORD_BYTES = 1 << 13
# Records of as many lengths must not fill the memory with headers.
_MAX_KNOWN_HEADERS = 1 << 14
# A smaller file is indexed faster than its index is opened.
_MIN_KEPT_BYTES = 1 << 20
# Below the limit of 256 descriptors that macOS has, of which JAX and the user need some.
_MAX_OPEN_FILES = 128
# A read costs a microsecond; to cut a large record out of a longer read costs more.
_MAX_SPAN_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """Where the records of one file lie.

    Record `i` is the bytes `bounds[i]:bounds[i + 1]`, of `[N + 1]` int64. `damage` is why the index
    ends before the file does: a damaged length hides everything after it. `copy` is the
    decompressed copy that holds the records, `None` where it is the file itself.
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
                got = f"{size - offset} of {length + overhead} bytes"
                raise framing.build_truncation_error(got)
            # Small records are walked through a window of 64 KiB, large ones with a read for each
            # header: a read costs about a microsecond, copying payloads costs more.
            window_bytes = _BLOCK_BYTES if length < _SMALL_RECORD_BYTES else header_bytes
            offset = end
            bounds.append(offset)
    except FramingError as error:
        damage = error.at(path, offset=offset, index=len(bounds) - 1)
    return RecordIndex(bounds=np.asarray(bounds, np.int64), damage=damage)


def load_index(
    descriptor: int, form: RecordFormat, path: str | Path, place: str | Path | None
) -> RecordIndex:
    """Return the index of an open file: the one kept, if it is of this very file, or a new one.

    `path` is the file as errors name it, `place` the plain file the index is kept for (the
    decompressed copy of a compressed one), `None` to keep none.

    An index is kept beside the file as `.<name>.penstock-index`, or in `cache_dir`, or, where
    neither can be written, in the user's cache folder. It belongs to the file of that size and
    modification time. Files below 1 MiB and damaged files keep none.
    """
    stat, framing = os.fstat(descriptor), form.framing
    if place is None or stat.st_size < _MIN_KEPT_BYTES:
        return build_index(descriptor, framing, path)
    places = _list_places(Path(place), form.cache_dir)
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
                kept_at.parent.mkdir(parents=True, exist_ok=True)
                with replacing(kept_at) as temporary:
                    temporary.write_bytes(packed)
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


def open_plain(path: str, form: RecordFormat) -> tuple[int, str, RecordError | None]:
    """Return a descriptor of a file's plain content, where that lies, and the damage if any.

    The caller closes the descriptor.
    """
    kind = form.compression
    if kind == "auto":
        with open(path, "rb", buffering=0) as file:
            kind = detect_compression(file.read(16), form.framing)
    if kind == "":
        return os.open(path, os.O_RDONLY), path, None
    return open_plain_copy(path, kind, form)


def index_file(path: str, form: RecordFormat, copies: Container[str] = ()) -> RecordIndex:
    """Return the index of a file, with the damage that ends it early if any.

    `copies` are the decompressed copies that were there before.
    """
    descriptor, place, damage = open_plain(path, form)
    try:
        index = load_index(descriptor, form, path, None if damage else place)
    finally:
        os.close(descriptor)
    copy = None if damage or place == path else place
    if copy is not None and (index.damage or not len(index)):
        # The copy may have lost its end or all, and not the file that it was made of.
        if copy in copies:
            remove_copy(Path(copy))
            return index_file(path, form)
        # A copy without records serves nobody.
        if not len(index):
            remove_copy(Path(copy))
            copy = None
    return RecordIndex(bounds=index.bounds, damage=damage or index.damage, copy=copy)


class RecordFiles:
    """The records of some files as one sequence, read by number from any thread.

    Args:
      paths: the files, in order; record 0 is the first record of the first.
      form: framing, compression and cache.

    Attributes:
      damages: why files end before their last byte, one error a damaged file.

    Files are opened when first read and at most 128 stay open. A copy shares the indexes and
    opens its own files: one copy an iterator, closed with it.
    """

    def __init__(self, paths: Sequence[str | Path], form: RecordFormat) -> None:
        self.paths = [str(path) for path in paths]
        self.form = form
        cache_dir = form.cache_dir or cache_folder()
        copies: set[str] = set()
        # Plain files are read without the folder, which may be another user's.
        with contextlib.suppress(OSError):
            copies = {str(copy.path) for copy in list_copies(cache_dir)}
        with ThreadPoolExecutor(min(16, len(self.paths) or 1)) as pool:
            self._indexes = list(pool.map(lambda path: index_file(path, form, copies), self.paths))
        if made := {index.copy for index in self._indexes if index.copy} - copies:
            _LOGGER.warning(
                "%d compressed record files were decompressed to '%s', and stay there for the next "
                "run. `penstock cache clear` removes them.",
                len(made),
                cache_dir,
            )
        counts = [len(index) for index in self._indexes]
        self._starts = [0, *itertools.accumulate(counts)]
        self.damages = [index.damage for index in self._indexes if index.damage is not None]
        self._open_when_read()

    def reopen(self) -> RecordFiles:
        """Return a copy that shares the indexes and has its own open files."""
        return copy.copy(self)

    def __getstate__(self) -> dict[str, object]:
        # Descriptors mean nothing elsewhere.
        return {key: value for key, value in self.__dict__.items() if key != "_open"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open_when_read()

    def _open_when_read(self) -> None:
        # Not a method of its own in the cache: who holds this is to be freed at once.
        open_file = partial(_open_file, threading.Lock(), self.paths, self.form)
        self._open = lru_cache(_MAX_OPEN_FILES)(open_file)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of records in each file."""
        return tuple(len(index) for index in self._indexes)

    @property
    def mean_record_bytes(self) -> int:
        """Return the mean size of a framed record, at least 1."""
        total = sum(int(index.bounds[-1]) for index in self._indexes)
        return max(1, total // max(1, len(self)))

    def origin(self, record: int) -> tuple[str, int, int]:
        """Return the path, byte offset and number in its file of a record."""
        number, index = self._locate(record)
        return self.paths[number], int(self._indexes[number].bounds[index]), index

    def blame(self, error: Exception, record: int) -> Exception:
        """Return the error with the file, byte offset and number of the record."""
        path, offset, index = self.origin(record)
        if isinstance(error, RecordError):
            return error.at(path, offset=offset, index=index)
        note(error, f"in record {index} of '{path}' at byte {offset}")
        return error

    def _locate(self, record: int) -> tuple[int, int]:
        if not 0 <= record < len(self):
            raise IndexError(f"record got {record}, expected 0 to {len(self) - 1}.")
        number = bisect.bisect_right(self._starts, record) - 1
        return number, record - self._starts[number]

    def read(self, records: Sequence[int]) -> Iterator[bytes | RecordError]:
        """Yield the payload of each record, or what is wrong with it, in the order asked.

        Records that follow one another in a file are read together, up to 64 KiB.
        """
        position = 0
        while position < len(records):
            number, index = self._locate(records[position])
            bounds = self._indexes[number].bounds
            count, start = 1, int(bounds[index])
            while (
                position + count < len(records)
                and records[position + count] == records[position] + count
                and index + count < len(bounds) - 1
                and bounds[index + count + 1] - start <= _MAX_SPAN_BYTES
            ):
                count += 1
            span = self._read_span(number, start, int(bounds[index + count]))
            for i in range(count):
                low, high = int(bounds[index + i]) - start, int(bounds[index + i + 1]) - start
                yield self._unframe(span[low:high], high - low, records[position + i])
            position += count

    def _read_span(self, number: int, start: int, end: int) -> bytes:
        """Read some bytes of a file; one `pread` gives at most 2 GiB and may give less."""
        file, data = self._open(number), b""
        while start + len(data) < end:
            more = os.pread(file.descriptor, end - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data

    def _unframe(self, framed: bytes, size: int, record: int) -> bytes | RecordError:
        framing = self.form.framing
        try:
            return framing.payload(framed, size - framing.overhead_bytes)
        except RecordError as error:
            path, offset, index = self.origin(record)
            return error.at(path, offset=offset, index=index)

    def close(self) -> None:
        """Close the files; reading again opens them again."""
        self._open.cache_clear()


class _OpenFile:
    """A file that is open as long as somebody holds it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    # At exit the names in `os` are gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


def _open_file(
    lock: threading.Lock, paths: Sequence[str], form: RecordFormat, number: int
) -> _OpenFile:
    # One at a time: who makes a copy of a compressed file removes all others of it.
    with lock:
        return _OpenFile(open_plain(paths[number], form)[0])


class RecordReader(RandomAccessReader):
    """A reader over record files. Made by `tfrecord` and `ofrecord`, which document it."""

    def __init__(
        self, paths: Sequence[str], form: RecordFormat, decoder: Decoder, options: ReadOptions
    ) -> None:
        # Files are indexed when the first pass or `len` needs it: that may take a while.
        super().__init__(decoder, options)
        check_workers(options.name, options.workers, {"decoder": decoder})
        self.paths, self.form = list(paths), form

    def index(self) -> tuple[RecordFiles, RecordOrder]:
        """Index the files.

        Raises:
          RecordError: a file is damaged and errors are raised, not skipped.
          OSError: a file cannot be opened.
        """
        files = RecordFiles(self.paths, self.form)
        if files.damages and self.options.on_error == "raise":
            raise files.damages[0]
        return files, self.options.order(len(files), tuple(files.paths), files.sizes)

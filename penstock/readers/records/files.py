"""Random access to the records of many files, and the reader over them."""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.readers._errors import RecordError, note
from penstock.readers._order import RecordOrder
from penstock.readers._random_access_reader import Decoder, RandomAccessReader
from penstock.readers._read_ahead import check_workers
from penstock.readers._read_options import ReadOptions
from penstock.readers.records.cache import cache_folder, list_copies, remove_copy
from penstock.readers.records.framing import TFRECORD, Framing
from penstock.readers.records.index import RecordIndex, load_index
from penstock.readers.records.plain import Compression, detect_compression, open_plain_copy

_LOGGER = logging.getLogger("penstock")
# Below the limit of 256 descriptors that macOS has, of which JAX and the user need some.
_MAX_OPEN_FILES = 128
# A read costs a microsecond; to cut a large record out of a longer read costs more.
_MAX_SPAN_BYTES = 1 << 16


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
        if self.compression not in ("auto", "", "GZIP", "ZLIB"):
            raise ValueError(
                f"compression got {self.compression!r}, expected 'auto', '', 'GZIP' or 'ZLIB'. "
                "These are the whole-file compressions of TFRecord. Leave it out to look at the "
                "file."
            )


def open_plain(path: str, form: RecordFormat) -> tuple[int, str, RecordError | None]:
    """Return a descriptor of a file's plain content, where that lies, and the damage if any.

    The caller closes the descriptor.

    Raises:
      OSError: the file cannot be opened.
      FramingError: it decompresses to more than `max_plain_bytes`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        kind = form.compression
        if kind == "auto":
            kind = detect_compression(os.pread(descriptor, 16, 0), form.framing)
    except BaseException:
        os.close(descriptor)
        raise
    if kind == "":
        return descriptor, path, None
    os.close(descriptor)
    limit = form.max_plain_bytes
    cache_dir, framing = form.cache_dir, form.framing
    return open_plain_copy(path, kind, max_plain_bytes=limit, cache_dir=cache_dir, framing=framing)


def index_file(path: str, form: RecordFormat) -> RecordIndex:
    """Return the index of a file, with the damage that ends it early if any."""
    descriptor, place, damage = open_plain(path, form)
    try:
        index = load_index(
            descriptor,
            form.framing,
            path,
            place=None if damage else place,
            cache_dir=form.cache_dir,
        )
    finally:
        os.close(descriptor)
    copy = None if damage or place == path else place
    # A copy without records serves nobody, and the bound on copies may be far.
    if copy is not None and not len(index):
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
        copies = {str(copy.path) for copy in list_copies(cache_dir)}
        with ThreadPoolExecutor(min(16, len(self.paths) or 1)) as pool:
            self._indexes = list(pool.map(lambda path: index_file(path, form), self.paths))
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
        self._open = _OpenFiles(self.paths, form)

    def reopen(self) -> RecordFiles:
        """Return a copy that shares the indexes and has its own open files."""
        copy = object.__new__(RecordFiles)
        copy.__dict__.update(self.__dict__)
        copy._open = _OpenFiles(self.paths, self.form)
        return copy

    def __getstate__(self) -> dict[str, object]:
        # Descriptors mean nothing elsewhere.
        return {key: value for key, value in self.__dict__.items() if key != "_open"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open = _OpenFiles(self.paths, self.form)

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

    def is_damage(self, error: Exception) -> bool:
        """Say whether an error is the data's fault."""
        return isinstance(error, RecordError)

    def _locate(self, record: int) -> tuple[int, int]:
        if not 0 <= record < len(self):
            raise IndexError(
                f"record got {record}, expected 0 to {len(self) - 1}. Records are numbered over "
                "all files. Check the number."
            )
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
            with self._open.borrow(number) as descriptor:
                span = _read_fully(descriptor, int(bounds[index + count]) - start, start)
            for i in range(index, index + count):
                low, high = int(bounds[i]) - start, int(bounds[i + 1]) - start
                yield self._payload(number, i, span[low:high], high - low)
            position += count

    def _payload(self, number: int, index: int, record: bytes, size: int) -> bytes | RecordError:
        framing = self.form.framing
        try:
            return framing.payload(record, size - framing.overhead_bytes)
        except RecordError as error:
            offset = int(self._indexes[number].bounds[index])
            return error.at(self.paths[number], offset=offset, index=index)

    def close(self) -> None:
        """Close the files; reading again opens them again."""
        self._open.close()


def _read_fully(descriptor: int, size: int, offset: int) -> bytes:
    """Read `size` bytes; one `pread` gives at most 2 GiB and may give less."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class _OpenFiles:
    """Descriptors by file number; the least recently used idle ones are closed beyond a limit."""

    def __init__(self, paths: Sequence[str], form: RecordFormat) -> None:
        self._paths, self._form = paths, form
        self._lock = threading.Lock()
        # By file number: the descriptor, and how many reads use it. The least recent is first.
        self._entries: OrderedDict[int, list[int]] = OrderedDict()

    @contextmanager
    def borrow(self, number: int) -> Iterator[int]:
        """Give a descriptor that stays open until the block ends."""
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                descriptor = open_plain(self._paths[number], self._form)[0]
                entry = self._entries[number] = [descriptor, 0]
            self._entries.move_to_end(number)
            # Counted before the lock is left: until then another thread may close it as idle.
            entry[1] += 1
            self._evict()
        try:
            yield entry[0]
        finally:
            with self._lock:
                entry[1] -= 1
                self._evict()

    def _evict(self) -> None:
        if len(self._entries) <= _MAX_OPEN_FILES:
            return
        idle = [number for number, entry in self._entries.items() if entry[1] == 0]
        for number in idle[: len(self._entries) - _MAX_OPEN_FILES]:
            os.close(self._entries.pop(number)[0])

    def close(self) -> None:
        """Close every descriptor that is not in use."""
        with self._lock:
            for number in [n for n, entry in self._entries.items() if entry[1] == 0]:
                os.close(self._entries.pop(number)[0])

    # An iterator that was dropped leaves files open. At exit the names in `os` are gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for descriptor, _ in self._entries.values():
            close(descriptor)


class RecordReader(RandomAccessReader):
    """A reader over record files. Made by `tfrecord` and `ofrecord`, which document it.

    Args:
      paths: the files, in order.
      form: their framing, compression and cache.
      decoder: payload to sample.
      options: batches, order, errors, workers.
    """

    def __init__(
        self, paths: Sequence[str], form: RecordFormat, decoder: Decoder, options: ReadOptions
    ) -> None:
        # Files are indexed when the first pass or `len` needs it: that may take a while.
        super().__init__(decoder, options)
        check_workers(options.name, options.workers, {"decoder": decoder})
        self.paths, self.form = list(paths), form
        self._indexing = threading.Lock()
        self._indexed: tuple[RecordFiles, RecordOrder] | None = None

    def __getstate__(self) -> dict[str, object]:
        # A lock cannot be pickled.
        return {**super().__getstate__(), "_indexing": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._indexing = threading.Lock()

    @property
    def records(self) -> RecordFiles:
        """Return the records of the indexed files.

        Raises:
          RecordError: a file is damaged and errors are raised, not skipped.
          OSError: a file cannot be opened.
        """
        return self._index()[0]

    @property
    def order(self) -> RecordOrder:
        """Return which records make which batch; raises as `records` does."""
        return self._index()[1]

    def reorder(self, order: RecordOrder) -> None:
        """Read in another order, or other records, from the next pass on."""
        self._indexed = (self.records, order)

    def _index(self) -> tuple[RecordFiles, RecordOrder]:
        # Threads may ask at the same time; files are indexed once.
        with self._indexing:
            if self._indexed is None:
                files = RecordFiles(self.paths, self.form)
                if files.damages and self.options.on_error == "raise":
                    raise files.damages[0]
                self._indexed = (
                    files,
                    self.options.order(len(files), tuple(files.paths), files.sizes),
                )
            return self._indexed

"""The decorators that read ahead, `buffered` and `xmap_readers`, and `cache`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice, repeat
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from penstock._errors import check_int
from penstock.readers import _read_ahead
from penstock.readers._contract import (
    Item,
    IteratorBase,
    ReaderBase,
    ReaderLike,
    State,
    reader_length,
)
from penstock.readers._errors import note
from penstock.readers._foreign import of
from penstock.readers.decorators import _fluid
from penstock.readers.sharding import find_own_shard

_LOGGER = logging.getLogger("penstock")
Mapped = TypeVar("Mapped")


# What a worker makes of a chunk: the mapped samples, what the mapper raised at the next, and how
# long it took.
MappedChunk: TypeAlias = "tuple[list[Any], Exception | None, float]"
_MAX_CHUNK = 32
# A task costs 5 us in a thread and 100 us in a process. Who closes a reader waits for its chunks.
_CHUNK_SECS = 1e-3


def _read_with_positions(source: IteratorBase[Item]) -> Iterator[tuple[Item, State]]:
    """Yield the items of a source, each with the position after it.

    It knows nothing of the iterator, so that one that is dropped is freed.
    """
    for item in source:
        yield item, source.get_state()


class _BufferedIterator(_fluid.DecoratedIterator[Item, Item]):
    kind = "buffered"

    def __init__(self, source: ReaderBase[Item], epoch: int, size: int) -> None:
        super().__init__([source], epoch)
        self._size = max(size, 1)
        self._begin()

    def _begin(self) -> None:
        pairs = _read_with_positions(self.inner[0])
        # One more than are read ahead: the item that is returned. The thread starts with the first.
        self._map: _read_ahead.ParallelMap[None, tuple[Item, State] | None]
        self._map = _read_ahead.ParallelMap(
            lambda _: next(pairs, None), repeat(None), num_workers=1, num_ahead=self._size + 1
        )
        self._state = self.inner[0].get_state()

    def __next__(self) -> Item:
        try:
            if self._closed or (read := next(self._map)) is None:
                raise StopIteration
        except Exception:
            self._stop()
            raise
        item, self._state = read
        return item

    def _stop(self) -> bool:
        """End the thread; return whether it has ended, which it cannot while its source stalls."""
        return self._map.close(_read_ahead.STALL_SECS)

    def _save(self) -> State:
        return {"source": self._state}

    def _load(self, state: Mapping[str, Any]) -> None:
        # As long as it takes: the thread must not go on reading a source that is moved.
        self._map.close()
        self.inner[0].set_state(state["source"])
        self._begin()

    def _release(self) -> None:
        if self._stop():
            super()._release()
        else:
            _LOGGER.warning(
                "readers.buffered got no answer from its source for %.0f s and was closed: its "
                "thread is left to end with the process.",
                _read_ahead.STALL_SECS,
            )

    def _abandon(self) -> None:
        self._map.abandon()


def buffered(reader: ReaderLike[Item], size: int) -> _fluid.DecoratedReader[Item]:
    """Read up to `size` items ahead in a thread: Fluid's `buffered`.

    An exception from the source is raised where its item would have come. The thread starts with
    the first item, and ends with the pass or when the iterator is closed or garbage-collected.
    `get_state` returns the position after the last item returned, not after the last item read.

    Args:
      reader: any reader.
      size: number of items to read ahead; 0 counts as 1.

    Raises:
      ValueError: `size` is not an int >= 0.

    >>> list(buffered(lambda: range(4), 2))
    [0, 1, 2, 3]
    """
    source = of(reader)
    check_int("buffered(size)", size, 0, "It counts the items read ahead.")
    return _fluid.DecoratedReader(
        "buffered", lambda epoch: _BufferedIterator(source, epoch, size), [source]
    )


class _Cache(Generic[Item]):
    """Keeps the items of the first pass that was read to its end.

    It knows nothing of the reader, so that one that is dropped is freed.
    """

    def __init__(self, source: ReaderBase[Item]) -> None:
        self.source = source
        self.items: list[Item] | None = None

    def count(self) -> int | None:
        return reader_length(self.source) if self.items is None else len(self.items)


class _CacheIterator(IteratorBase[Item]):
    kind = "cache"

    def __init__(self, kept: _Cache[Item], epoch: int) -> None:
        self.epoch = epoch
        self._cache = kept
        self._position = 0
        self._read: list[Item] = []
        self._inner: IteratorBase[Item] | None = None

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        if self._cache.items is None and not self._read_until(self._position):
            self._cache.items = self._read
            self._release()
        items = self._read if self._cache.items is None else self._cache.items
        if self._position >= len(items):
            raise StopIteration
        self._position += 1
        return items[self._position - 1]

    def _read_until(self, index: int) -> bool:
        """Read the source until item `index` is there; return False if it ends before."""
        if self._inner is None:
            # Epoch 0 whichever pass fills the cache: all passes then have the same items.
            self._inner = self._cache.source.iterate(0)
        # A state may have led back to what was read.
        num_new = max(index + 1 - len(self._read), 0)
        try:
            self._read.extend(islice(self._inner, num_new))
        except BaseException:
            # Some sources are over behind an error: what was read would be taken for all there is.
            self._release()
            self._read = []
            raise
        return len(self._read) > index

    def _save(self) -> State:
        return {"position": self._position}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]

    def _release(self) -> None:
        if self._inner is not None:
            self._inner.close()
            self._inner = None


def cache(reader: ReaderLike[Item]) -> ReaderBase[Item]:
    """Keep all items in memory after the first full pass: Fluid's `cache`.

    The source is read lazily, at its epoch 0, and never again once it has been read to the end.
    Every pass has the same items in the same order: shuffle after `cache`, not before. To save
    memory, cache encoded records and decode them afterwards:
    `xmap_readers(decode, cache(records), ...)`. Items are not copied; do not change them in place.

    >>> cached = cache(lambda: range(3))
    >>> list(cached()), list(cached())
    ([0, 1, 2], [0, 1, 2])
    """
    kept = _Cache(of(reader))
    return _fluid.DecoratedReader(
        "cache", lambda epoch: _CacheIterator(kept, epoch), [kept.source], kept.count
    )


def _map_chunk(mapper: Callable[[Item], object], samples: list[Item]) -> MappedChunk:
    """Map the samples of a chunk, up to one at which the mapper raises."""
    started, mapped, failure = time.perf_counter(), [], None
    try:
        for sample in samples:
            mapped.append(mapper(sample))
    except Exception as error:
        failure = _read_ahead.make_portable(error)
    return mapped, failure, time.perf_counter() - started


class _Chunk(NamedTuple):
    """Samples in work: where the source stood before the first, its number, and those to return."""

    source: State
    first: int
    numbers: deque[int]


class _Chunks(Generic[Item]):
    """The samples of a source in chunks, for the map to read.

    It knows nothing of the iterator, so that one that is dropped is freed. `window` bounds the
    samples that are in work, or mapped and not returned; those in `done` were returned before an
    older one, and are left out.
    """

    def __init__(
        self, source: IteratorBase[Item], window: int, num_read: int, done: Collection[int]
    ) -> None:
        self._source, self._num_read, self._done = source, num_read, set(done)
        self._room, self.size = window, 1
        self._num_taken = 0
        # What ended the source behind the samples of a chunk: raised where the next would come.
        self._end: list[Exception] = []
        self.open: dict[int, _Chunk] = {}  # by the map's number, the oldest first

    def __iter__(self) -> Iterator[list[Item]]:
        return self

    def __next__(self) -> list[Item]:
        if self._end:
            raise self._end.pop()
        # Asked once a chunk: some sources take as long to tell their position as to read a sample.
        chunk = _Chunk(self._source.get_state(), self._num_read, deque())
        samples: list[Item] = []
        try:
            while len(samples) < self.size:
                sample = next(self._source)
                if self._num_read not in self._done:
                    samples.append(sample)
                    self._room -= 1
                    chunk.numbers.append(self._num_read)
                self._num_read += 1
        except Exception as error:
            if not samples:
                raise
            self._end.append(error)
        self.open[self._num_taken] = chunk
        self._num_taken += 1
        return samples

    def finish(self, taken: int) -> None:
        chunk = self.open[taken]
        chunk.numbers.popleft()
        self._room += 1
        if not chunk.numbers:
            del self.open[taken]

    def count_allowed(self) -> int:
        """Return how many chunks there may be."""
        return len(self.open) + self._room // self.size

    def find_first_in_work(self, taken: int) -> int:
        """Return the number of the first sample of a chunk, of the oldest where it is finished."""
        oldest = next(iter(self.open.values()))
        return self.open.get(taken, oldest).numbers[0]

    def get_state(self) -> State:
        """Return the position from which no sample is lost or repeated."""
        if not self.open:
            return {"source": self._source.get_state(), "first": self._num_read, "done": []}
        oldest = next(iter(self.open.values()))
        in_work = {number for chunk in self.open.values() for number in chunk.numbers}
        done = [n for n in range(oldest.first, self._num_read) if n not in in_work]
        return {"source": oldest.source, "first": oldest.first, "done": done}


class _XmapIterator(_fluid.DecoratedIterator[Item, Mapped]):
    """Keeps a window of samples in work, read from the source by the thread that iterates.

    So there is no feeder to wait for: nothing can hang, and an exception of the source takes
    its place behind the samples read before it.
    """

    kind = "xmap_readers"

    def __init__(
        self,
        source: ReaderBase[Item],
        epoch: int,
        window: int,
        max_size: int,
        start_map: Callable[[_Chunks[Item]], _read_ahead.ParallelMap[list[Item], MappedChunk]],
        name: str,
    ) -> None:
        super().__init__([source], epoch)
        self._window, self._max_size = window, max_size
        self._start_map, self._name = start_map, name
        self._begin(0, ())

    def _begin(self, num_read: int, done: Collection[int]) -> None:
        self._chunks = _Chunks(self.inner[0], self._window, num_read, done)
        self._map = self._start_map(self._chunks)
        # Of the chunk that was taken last: its number, and what is not returned of it.
        self._taken = 0
        self._mapped: deque[Mapped] = deque()
        self._error: Exception | None = None

    def __next__(self) -> Mapped:
        if self._closed:
            raise StopIteration
        try:
            if not self._mapped and self._error is None:
                self._map.num_ahead = self._chunks.count_allowed()
                self._taken, (mapped, self._error, secs) = self._map.take()
                self._mapped.extend(mapped)
                size = self._chunks.size * 2 if secs < _CHUNK_SECS else self._chunks.size // 2
                self._chunks.size = max(1, min(size, self._max_size))
            if not self._mapped and self._error is not None:
                raise self._error
        except Exception as error:
            # The mapper's, or that of a process that ended: behind the source's nothing is open,
            # and an iterator that another thread has closed is at its end.
            if self._chunks.open and not self._closed:
                failed = self._chunks.find_first_in_work(self._taken)
                self.close()
                note(error, _fluid.origin(self._name, failed, self.epoch))
            raise
        self._chunks.finish(self._taken)
        return self._mapped.popleft()

    def _save(self) -> State:
        return self._chunks.get_state()

    def _load(self, state: Mapping[str, Any]) -> None:
        self._map.close()
        self.inner[0].set_state(state["source"])
        self._begin(state["first"], state["done"])

    def _release(self) -> None:
        self._map.close()
        super()._release()

    def _abandon(self) -> None:
        self._map.abandon()


def xmap_readers(
    mapper: Callable[[Item], Mapped],
    reader: ReaderLike[Item],
    process_num: int,
    buffer_size: int,
    order: bool = False,
    *,
    workers: _read_ahead.Workers = "thread",
) -> _fluid.DecoratedReader[Mapped]:
    """Map samples in `process_num` threads or processes: Fluid's `xmap_readers`.

    Samples that are mapped in microseconds go to the workers in chunks, of up to 32.
    An exception from `mapper` ends the pass, with the sample's number in a note. Threads start
    with the first sample, and end with the pass or when the iterator is closed or
    garbage-collected. Processes are kept for the next pass, and end when the reader is closed or
    garbage-collected. A position can be restored with `order` and without: no sample is lost or
    repeated.

    Args:
      mapper: a function of a sample.
      reader: a reader of samples, read by the thread that iterates.
      process_num: number of workers.
      buffer_size: number of samples in progress or finished, beyond one per worker.
      order: keep the reader's order; otherwise yield samples as they become ready.
      workers: `"thread"` suits opencv and numpy, which release the GIL. `"process"` pickles
        samples and `mapper`, and a script then needs `if __name__ == "__main__":`.

    Raises:
      ValueError: a count below 1, or an unknown `workers`.
      TypeError: `workers="process"` with a mapper that cannot be pickled.

    >>> list(xmap_readers(lambda x: x * x, lambda: range(5), 2, 4, order=True))
    [0, 1, 4, 9, 16]
    """
    source = of(reader)
    check_int("xmap_readers(process_num)", process_num, 1, "It counts workers.")
    check_int("xmap_readers(buffer_size)", buffer_size, 1, "It counts samples.")
    _read_ahead.check_workers("xmap_readers", workers, {"mapper": mapper})
    window = process_num + buffer_size
    # Four chunks a worker, so that none waits long for the last.
    max_size = min(_MAX_CHUNK, window // (4 * process_num))
    map_chunk = partial(_map_chunk, mapper)
    processes = (
        _read_ahead.WorkerProcesses(map_chunk, process_num) if workers == "process" else None
    )

    def start_map(chunks: _Chunks[Item]) -> _read_ahead.ParallelMap[list[Item], MappedChunk]:
        return _read_ahead.ParallelMap(
            map_chunk,
            chunks,
            num_workers=process_num,
            num_ahead=window,
            processes=processes,
            # `batch` may divide samples that every process has, by their places.
            in_order=order or find_own_shard().count > 1,
        )

    name = f"xmap_readers({_fluid.get_name(mapper)})"
    return _fluid.DecoratedReader(
        "xmap_readers",
        lambda epoch: _XmapIterator(source, epoch, window, max_size, start_map, name),
        [source] if processes is None else [source, processes],
    )

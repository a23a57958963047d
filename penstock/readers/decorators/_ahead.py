"""The decorators that read ahead, `buffered` and `xmap_readers`, and `cache`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import repeat
from typing import Any, Generic, TypeVar

from penstock.readers._contract import (
    Item,
    IteratorBase,
    ReaderBase,
    ReaderLike,
    State,
    reader_length,
)
from penstock.readers._errors import check_int
from penstock.readers._foreign import of
from penstock.readers._read_ahead import (
    STALL_SECS,
    ParallelMap,
    WorkerProcesses,
    Workers,
    check_workers,
)
from penstock.readers.decorators._fluid import (
    DecoratedIterator,
    DecoratedReader,
    get_name,
    origin,
)
from penstock.readers.sharding import find_own_shard

_LOGGER = logging.getLogger("penstock")
Mapped = TypeVar("Mapped")


class _ReadNext(Generic[Item]):
    """Read the next item of a source and the position after it; `None` at the end.

    Called by one thread. It knows nothing of the iterator, so that one that is dropped is freed.
    """

    def __init__(self, source: IteratorBase[Item]) -> None:
        self._source = source
        self._is_over = False

    def __call__(self, _: None) -> tuple[Item, State] | None:
        # Asked for ahead, before the end was known.
        if self._is_over:
            return None
        try:
            for item in self._source:
                return item, self._source.get_state()
        except BaseException:
            self._is_over = True
            raise
        self._is_over = True
        return None


class _BufferedIterator(DecoratedIterator[Item, Item]):
    kind = "buffered"

    def __init__(self, source: ReaderBase[Item], epoch: int, size: int) -> None:
        super().__init__([source], epoch)
        self._size = max(size, 1)
        self._state = self._inner[0].get_state()
        self._map: ParallelMap[None, tuple[Item, State] | None] | None = None
        self._is_over = False

    def __next__(self) -> Item:
        if self._is_over or self._closed:
            raise StopIteration
        if self._map is None:
            # One more than are read ahead: the item that is returned.
            read_next, ahead = _ReadNext(self._inner[0]), self._size + 1
            self._map = ParallelMap(read_next, repeat(None), num_workers=1, num_ahead=ahead)
        try:
            read = next(self._map)
        except Exception:
            self._end()
            raise
        if read is None:
            self._end()
            raise StopIteration
        item, self._state = read
        return item

    def _end(self) -> None:
        self._is_over = True
        self._stop()

    def _stop(self) -> bool:
        """End the thread; return whether it has ended, which it cannot while its source stalls."""
        reading, self._map = self._map, None
        return reading is None or reading.close(STALL_SECS)

    def _save(self) -> State:
        return {"source": self._state}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._stop()
        self._is_over = False
        self._state = state["source"]
        self._inner[0].set_state(self._state)

    def _release(self) -> None:
        if self._stop():
            super()._release()
        else:
            _LOGGER.warning(
                "readers.buffered got no answer from its source for %.0f s and was closed: its "
                "thread is left to end with the process.",
                STALL_SECS,
            )

    def _abandon(self) -> None:
        if self._map is not None:
            self._map.abandon()


def buffered(reader: ReaderLike[Item], size: int) -> DecoratedReader[Item]:
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
    check_int("buffered(size)", size, 0, "It counts the items read ahead")
    return DecoratedReader(
        "buffered",
        lambda epoch: _BufferedIterator(source, epoch, size),
        lambda: reader_length(source),
        [source],
    )


class _Cache(DecoratedReader[Item]):
    """Keeps the items of the first pass that was read to its end."""

    def __init__(self, source: ReaderBase[Item]) -> None:
        super().__init__(
            "cache",
            lambda epoch: _CacheIterator(self, epoch),
            lambda: reader_length(source) if self.items is None else len(self.items),
            [source],
        )
        self.source = source
        self.items: list[Item] | None = None


class _CacheIterator(IteratorBase[Item]):
    kind = "cache"

    def __init__(self, cache_reader: _Cache[Item], epoch: int) -> None:
        self.epoch = epoch
        self._cache = cache_reader
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
        while len(self._read) <= index:
            for item in self._inner:
                self._read.append(item)
                break
            else:
                return False
        return True

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
    return _Cache(of(reader))


class _Samples(Generic[Item]):
    """The samples of a source, numbered, with the source's position before each.

    The map reads from it. It knows nothing of the iterator, so that one that is dropped is freed.
    """

    def __init__(self, source: IteratorBase[Item], first: int, done: Collection[int]) -> None:
        self._source = source
        self.num_read = first
        # Numbers of samples that were returned before an older one.
        self.done = set(done)
        # By the map's number: the sample's number, and the position before it.
        self.taken: dict[int, tuple[int, State]] = {}
        self._num_taken = 0

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            # Asked before each sample: a restored pass reads again from the oldest that was not
            # returned.
            before = self._source.get_state()
            sample = next(self._source)
            self.num_read += 1
            if self.num_read - 1 not in self.done:
                self.taken[self._num_taken] = self.num_read - 1, before
                self._num_taken += 1
                return sample

    def finish(self, taken: int, oldest: int | None) -> None:
        """Note that a sample was returned; `oldest` is what the map now waits for longest."""
        number, _ = self.taken.pop(taken)
        # An older one is still in work: a restored pass has to leave this one out.
        if any(older < number for older, _ in self.taken.values()):
            self.done.add(number)
            return
        first = self.num_read if oldest is None else self.taken[oldest][0]
        self.done = {one for one in self.done if one > first}

    def get_state(self, oldest: int | None) -> State:
        """Return the position from which no sample is lost or repeated."""
        if oldest is None:
            before, first = self._source.get_state(), self.num_read
        else:
            first, before = self.taken[oldest]
        done = sorted(one for one in self.done if one >= first)
        return {"source": before, "first": first, "done": done}


class _XmapIterator(DecoratedIterator[Item, Mapped]):
    """Keeps a window of samples in work, read from the source by the thread that iterates.

    So there is no feeder to wait for: nothing can hang, and an exception of the source takes
    its place behind the samples read before it.
    """

    kind = "xmap_readers"

    def __init__(
        self,
        source: ReaderBase[Item],
        epoch: int,
        start_map: Callable[[_Samples[Item], Callable[[int], str]], ParallelMap[Item, Mapped]],
        name: str,
    ) -> None:
        super().__init__([source], epoch)
        self._start_map, self._name = start_map, name
        self._begin(0, ())

    def _begin(self, first: int, done: Collection[int]) -> None:
        samples = self._samples = _Samples(self._inner[0], first, done)
        # Local names for the map, which must not hold the iterator: dropped, it would never be
        # freed.
        name, epoch = self._name, self.epoch
        self._map = self._start_map(samples, lambda at: origin(name, samples.taken[at][0], epoch))

    def __next__(self) -> Mapped:
        if self._closed:
            raise StopIteration
        try:
            number, mapped = self._map.take()
        except Exception:
            # The mapper's error; after one of the source nothing is left to close.
            if self._samples.taken:
                self.close()
            raise
        self._samples.finish(number, self._map.oldest)
        return mapped

    def _save(self) -> State:
        return self._samples.get_state(self._map.oldest)

    def _load(self, state: Mapping[str, Any]) -> None:
        self._map.close()
        self._inner[0].set_state(state["source"])
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
    workers: Workers = "thread",
) -> DecoratedReader[Mapped]:
    """Map samples in `process_num` threads or processes: Fluid's `xmap_readers`.

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
    check_int("xmap_readers(process_num)", process_num, 1, "It counts workers")
    check_int("xmap_readers(buffer_size)", buffer_size, 1, "It counts samples")
    check_workers("xmap_readers", workers, {"mapper": mapper})
    processes = WorkerProcesses(mapper, process_num) if workers == "process" else None

    def start_map(
        samples: _Samples[Item], origin: Callable[[int], str]
    ) -> ParallelMap[Item, Mapped]:
        return ParallelMap(
            mapper,
            samples,
            num_workers=process_num,
            num_ahead=process_num + buffer_size,
            processes=processes,
            # `batch` divides samples that every process has in one order.
            in_order=order or (source.is_common and find_own_shard().count > 1),
            origin=origin,
        )

    name = f"xmap_readers({get_name(mapper)})"
    return DecoratedReader(
        "xmap_readers",
        lambda epoch: _XmapIterator(source, epoch, start_map, name),
        lambda: reader_length(source),
        [source] if processes is None else [source, processes],
    )

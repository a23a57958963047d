"""`buffered`, a bounded look-ahead in a thread, and `cache`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import repeat
from typing import Any, Generic

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
from penstock.readers._parallel_map import ParallelMap
from penstock.readers._workers import STALL_SECS
from penstock.readers.decorators._decorated import DecoratedIterator, DecoratedReader

_LOGGER = logging.getLogger("penstock")


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

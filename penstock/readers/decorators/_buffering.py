"""`buffered`, a bounded look-ahead in a thread, and `cache`."""

import logging
import threading
from queue import SimpleQueue
from typing import Any

from penstock.readers._contract import (
    IteratorBase,
    ReaderBase,
    ReaderLike,
    State,
    reader_length,
)
from penstock.readers._errors import check_int
from penstock.readers._foreign import of
from penstock.readers.decorators._stage import Stage, StageIterator

_LOGGER = logging.getLogger("penstock")

_STALL_SECS = 5.0
"""How long closing waits for a source that yields nothing: an interrupted run must end."""


class _Channel:
    """A bounded queue between one producer and one consumer, which either may close.

    Each entry is `(item, state, error)`; an entry with an error, or `StopIteration`, is the last.
    Made of `SimpleQueue`s, which a finalizer may put into wherever it runs.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: SimpleQueue[tuple[Any, State | None, BaseException | None]] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()  # one for each entry there is room for
        self._is_closed = False
        for _ in range(capacity):
            self._room.put(None)

    def put(self, item: Any, state: State | None, error: BaseException | None = None) -> bool:
        """Wait for room and add an entry; return False when the consumer has closed."""
        self._room.get()
        if not self._is_closed:
            self._entries.put((item, state, error))
        return not self._is_closed

    def get(self) -> tuple[Any, State | None, BaseException | None]:
        """Wait for an entry and take it."""
        entry = self._entries.get()
        self._room.put(None)
        return entry

    def close(self) -> None:
        """Release a producer that waits for room."""
        self._is_closed = True
        self._room.put(None)


def _produce(source: IteratorBase, channel: _Channel) -> None:
    """Read ahead. Knows the channel only: a dropped iterator can be collected and closes."""
    try:
        for item in source:
            if not channel.put(item, source.get_state()):
                return
        channel.put(None, None, StopIteration())
    except BaseException as error:  # raised again where the item is read
        channel.put(None, None, error)


class _BufferedIterator(StageIterator):
    kind = "buffered"

    def __init__(self, source: ReaderBase, epoch: int, size: int) -> None:
        super().__init__([source], epoch)
        self._size = max(size, 1)
        self._state = self._inner[0].get_state()
        self._channel: _Channel | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    def _start(self) -> _Channel:
        channel = _Channel(self._size)
        self._thread = threading.Thread(
            target=_produce,
            args=(self._inner[0], channel),
            name="penstock-buffered",
            daemon=True,
        )
        self._thread.start()
        self._channel = channel
        return channel

    def __next__(self) -> Any:
        if self._is_over or self._closed:
            raise StopIteration
        item, state, error = (self._channel or self._start()).get()
        if error is not None:
            self._is_over = True
            self._stop()
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle that would keep us alive
        self._state = state or self._state
        return item

    def _stop(self) -> bool:
        """End the thread; return whether it has ended, which it cannot while its source stalls."""
        has_ended = True
        if self._channel is not None and self._thread is not None:
            self._channel.close()
            self._thread.join(_STALL_SECS)
            has_ended = not self._thread.is_alive()
            self._channel = self._thread = None
        return has_ended

    def _save(self) -> State:
        return {"source": self._state}

    def _load(self, state: State) -> None:
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
                _STALL_SECS,
            )

    def _abandon(self) -> None:
        if self._channel is not None:
            self._channel.close()


def buffered(reader: ReaderLike, size: int) -> Stage:
    """Read up to `size` items ahead in a thread: Fluid's `buffered`.

    An exception of the source is raised where its item would have come. The thread starts
    with the first item and ends with the pass, or when the iterator is closed or dropped.
    `get_state` is the position of what was returned, not of what was read ahead.

    Args:
      reader: any reader.
      size: items read ahead; 0 counts as 1.

    Raises:
      ValueError: `size` is not an int >= 0.

    >>> list(buffered(lambda: range(4), 2))
    [0, 1, 2, 3]
    """
    source = of(reader)
    check_int("buffered(size)", size, 0, "It counts the items read ahead")
    return Stage(
        "buffered",
        lambda epoch: _BufferedIterator(source, epoch, size),
        lambda: reader_length(source),
        [source],
    )


class _Cache(ReaderBase):
    """Keeps the items of the first pass that was read to its end."""

    def __init__(self, source: ReaderBase) -> None:
        super().__init__()
        self.source = source
        self.items: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.source) if self.items is None else len(self.items)  # type: ignore[arg-type]

    def iterate(self, epoch: int) -> "_CacheIterator":
        return _CacheIterator(self, epoch)

    def close(self) -> None:
        self.source.close()


class _CacheIterator(IteratorBase):
    kind = "cache"

    def __init__(self, cache_reader: _Cache, epoch: int) -> None:
        self.epoch = epoch
        self._cache = cache_reader
        self._position = 0
        self._read: list[Any] = []
        self._inner: IteratorBase | None = None

    def __next__(self) -> Any:
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

    def _load(self, state: State) -> None:
        self._position = state["position"]

    def _release(self) -> None:
        if self._inner is not None:
            self._inner.close()
            self._inner = None


def cache(reader: ReaderLike) -> ReaderBase:
    """Keep all items in memory after the first full pass: Fluid's `cache`.

    The source is read lazily, at its epoch 0, and never again once it was read to its end: every
    pass then has the same items in the same order, so shuffle after it. Cache encoded
    records before decoding them to save memory: `xmap_readers(decode, cache(records), ...)`.
    The items are handed out as they are; do not change them in place.

    >>> cached = cache(lambda: range(3))
    >>> list(cached()), list(cached())
    ([0, 1, 2], [0, 1, 2])
    """
    return _Cache(of(reader))

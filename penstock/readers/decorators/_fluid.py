"""Fluid's decorators that read in the thread that iterates, and what every decorator is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from penstock._errors import check_int
from penstock.readers._contract import (
    Item,
    Item_co,
    IteratorBase,
    ReaderBase,
    ReaderLike,
    State,
    reader_length,
)
from penstock.readers._errors import ComposeNotAligned, note
from penstock.readers._foreign import of
from penstock.readers._read_ahead import WorkerProcesses
from penstock.readers.sharding import BatchSize, Shard, find_own_shard, resolve_batch_size

# An item of a source, and what becomes of it.
Read = TypeVar("Read")
Made = TypeVar("Made")
_END = object()


class DecoratedReader(ReaderBase[Item_co]):
    """A reader made of other readers: opens an iterator an epoch, knows its length if they do."""

    def __init__(
        self,
        kind: str,
        open_epoch: Callable[[int], IteratorBase[Item_co]],
        kept: Sequence[ReaderBase[Any] | WorkerProcesses],
        length: Callable[[], int | None] | None = None,
    ) -> None:
        super().__init__()
        self._kind = kind
        self._open_epoch = open_epoch
        self._kept = kept
        self.sources = [source for source in kept if isinstance(source, ReaderBase)]
        self._length = length
        self.is_common = all(source.is_common for source in self.sources)

    def __len__(self) -> int:
        """Return the number of items in a pass.

        Raises:
          TypeError: a source does not know its length.
        """
        # No bound method is kept: the reader would then only be freed by the collector.
        length = self._find_shortest() if self._length is None else self._length()
        if length is None:
            raise TypeError(f"{self._kind}: the length is unknown, as a source has none")
        return length

    def _find_shortest(self) -> int | None:
        lengths = [reader_length(source) for source in self.sources]
        return None if None in lengths else min(n for n in lengths if n is not None)

    def __repr__(self) -> str:
        sources = ", ".join(map(repr, self.sources))
        return f"<{self._kind} of {sources or 'a reader'}: next epoch {self.next_epoch}>"

    def iterate(self, epoch: int) -> IteratorBase[Item_co]:
        return self._open_epoch(epoch)

    def close(self) -> None:
        for resource in self._kept:
            resource.close()


class DecoratedIterator(IteratorBase[Item_co], Generic[Read, Item_co]):
    """The base of the decorators' iterators: owns source iterators and closes them.

    `inner` has the sources' iterators; `position` counts the items returned in this pass. By
    default a state is the position and the sources' states: right for whatever keeps nothing else
    between two items.
    """

    def __init__(self, sources: Sequence[ReaderBase[Read]], epoch: int) -> None:
        self.epoch = epoch
        self.position = 0
        self._readers = list(sources)
        self.inner: list[IteratorBase[Read]] = []
        try:
            for source in self._readers:
                self.inner.append(source.iterate(epoch))
        except BaseException:
            # Not by `close`: what a subclass would release has not been made yet.
            self._closed = True
            DecoratedIterator._release(self)
            raise

    def _save(self) -> State:
        return {
            "position": self.position,
            "sources": [iterator.get_state() for iterator in self.inner],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]
        for inner, saved in zip(self.inner, state["sources"], strict=True):
            inner.set_state(saved)

    def _release(self) -> None:
        for inner in self.inner:
            inner.close()


def origin(function: str, index: int, epoch: int) -> str:
    return f"in {function}, sample {index} of epoch {epoch}"


def get_name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def count_batches(source: ReaderBase[Item], size: int, drop_last: bool) -> int | None:
    """Return how many batches a source makes, `None` where it does not know its length."""
    num_samples = reader_length(source)
    if num_samples is None:
        return None
    return num_samples // size if drop_last else -(-num_samples // size)


def take_part(samples: list[Item], shard: Shard | None) -> list[Item]:
    return samples if shard is None else samples[slice(*shard.rows(0, len(samples)))]


class _StepIterator(DecoratedIterator[Any, Item]):
    """Makes each item by a function of itself: it has `inner`, `position` and `epoch`."""

    def __init__(
        self, kind: str, sources: Sequence[ReaderBase[Any]], epoch: int, step: Step[Item]
    ) -> None:
        super().__init__(sources, epoch)
        self.kind, self._step = kind, step

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        item = self._step(self)
        self.position += 1
        return item


Step = Callable[[_StepIterator[Any]], Item]


def _decorate(
    kind: str,
    sources: Sequence[ReaderBase[Any]],
    step: Step[Item],
    length: Callable[[], int | None] | None = None,
) -> DecoratedReader[Item]:
    return DecoratedReader(
        kind, lambda epoch: _StepIterator(kind, sources, epoch, step), sources, length
    )


class _Batches(DecoratedReader[list[Item]]):
    """What `batch` makes; `size` where the last of its lists may be shorter."""

    size: int | None = None

    @property
    def last_batch_size(self) -> int | None:
        """How many samples the last list has, where the source knows how many it yields."""
        num_samples = reader_length(self.sources[0])
        if self.size is None or not num_samples:
            return None
        return num_samples % self.size or self.size


def batch(
    reader: ReaderLike[Item],
    batch_size: BatchSize,
    drop_last: bool = False,
    *,
    shard: Shard | None = None,
) -> DecoratedReader[list[Item]]:
    """Collect samples into lists of `batch_size`: Fluid's `batch`.

    With a shard, every process reads the same samples and keeps its chunk of each batch. Together
    they train on the batches that one process would have. The last chunk may be an empty list.

    Without a shard, it depends on the reader once `ps.distributed.initialize()` has joined several
    processes. The samples of penstock's own readers, made without a shard, are divided like this.
    Those of other sources, such as generators, are taken to belong to this process alone.

    Args:
      reader: a reader of samples.
      batch_size: samples per list, or `PerDevice(...)`; with a shard, the global batch size.
      drop_last: drop the last list if it is shorter.
      shard: the part of each batch that this process keeps; `Shard()` keeps all.

    Raises:
      ValueError: `batch_size` is not a positive int.
      ShardError: `batch_size` is not a multiple of the number of processes.

    >>> list(batch(lambda: range(5), 2))
    [[0, 1], [2, 3], [4]]
    >>> list(batch(lambda: range(5), 2, shard=Shard(1, 2)))
    [[1], [3], []]
    """
    source = of(reader)
    if shard is None and source.is_common and (own := find_own_shard()).count > 1:
        shard = own
    size = resolve_batch_size(batch_size, shard)

    def collect(iterator: _StepIterator[list[Item]]) -> list[Item]:
        # A shard reads the whole batch, as all processes read the same samples.
        samples = list(islice(iterator.inner[0], size))
        if not samples or (drop_last and len(samples) < size):
            raise StopIteration
        return take_part(samples, shard)

    batches = _Batches(
        "batch",
        lambda epoch: _StepIterator("batch", [source], epoch, collect),
        [source],
        lambda: count_batches(source, size, drop_last),
    )
    batches.is_common = False
    if not drop_last and shard is None:
        batches.size = size
    return batches


class PoolIterator(DecoratedIterator[Item, Made]):
    """Reads a pool of samples and returns what it makes of them; a restored pass reads it again.

    A subclass says what a pool is (`_read`) and what becomes of it (`_cut`).
    """

    def __init__(self, source: ReaderBase[Item], epoch: int) -> None:
        super().__init__([source], epoch)
        # The current pool: its number, where the source stood before it, and how many samples were
        # read by then.
        self._pool = -1
        self._start: State = self.inner[0].get_state()
        self._num_before = self._num_read = 0
        # Drained from the end, where a list gives up items at no cost.
        self._ready: list[Made] = []
        self._num_returned = 0

    def _read(self) -> list[Item]:
        """Return the samples of the next pool."""
        raise NotImplementedError

    def _cut(self, samples: list[Item]) -> list[Made]:
        """Return what a pass yields of the current pool."""
        raise NotImplementedError

    def __next__(self) -> Made:
        # A pool may have no batch, where its only one is short and left out.
        while not self._ready or self._closed:
            if self._closed or not self._fill():
                raise StopIteration
        self._num_returned += 1
        return self._ready.pop()

    def _fill(self) -> bool:
        """Read a pool; return False where the source is over."""
        self._start, self._num_before = self.inner[0].get_state(), self._num_read
        if samples := self._read():
            self._pool += 1
            self._num_returned = 0
            self._ready = self._cut(samples)[::-1]
        return bool(samples)

    def _save(self) -> State:
        # Between two pools nothing has to be read again.
        is_between = not self._ready
        return {
            "source": self.inner[0].get_state() if is_between else self._start,
            "num_read": self._num_read if is_between else self._num_before,
            "pool": self._pool + is_between,
            "num_returned": 0 if is_between else self._num_returned,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.inner[0].set_state(state["source"])
        self._pool, self._num_read, self._ready = state["pool"] - 1, state["num_read"], []
        # In the middle of a pool: it is read again, and what was returned of it is dropped.
        if num_returned := state["num_returned"]:
            self._fill()
            del self._ready[-num_returned:]
            self._num_returned = num_returned


class _ShuffleIterator(PoolIterator[Item, Item]):
    kind = "shuffle"

    def __init__(self, source: ReaderBase[Item], epoch: int, buf_size: int, seed: int) -> None:
        super().__init__(source, epoch)
        self._buf_size, self._seed = max(buf_size, 1), seed

    def _read(self) -> list[Item]:
        return list(islice(self.inner[0], self._buf_size))

    def _cut(self, samples: list[Item]) -> list[Item]:
        if self._buf_size == 1:
            return samples
        # The bit generator is named: numpy may give `default_rng` another one in a release.
        generator = np.random.Generator(np.random.PCG64([self._seed, self.epoch, self._pool]))
        return [samples[i] for i in generator.permutation(len(samples))]

    # The keys of a buffer's position are older than those of pools.
    def _save(self) -> State:
        state = super()._save()
        return {"source": state["source"], "fill": state["pool"], "drained": state["num_returned"]}

    def _load(self, state: Mapping[str, Any]) -> None:
        place = {"pool": state["fill"], "num_returned": state["drained"], "num_read": 0}
        super()._load({"source": state["source"], **place})


def shuffle(reader: ReaderLike[Item], buf_size: int, *, seed: int = 0) -> DecoratedReader[Item]:
    """Shuffle within a buffer: Fluid's `shuffle`, with a seed.

    Fills a buffer with `buf_size` samples, shuffles it, empties it, and fills it again. The order
    depends only on `seed`, the epoch and the number of the buffer. A size of 0 or 1 keeps the
    order. Restoring a position rereads the samples of one buffer. For data with random access, use
    `shuffle=True` of `arrays` or of the readers of files, which shuffles all samples without a
    buffer.

    Args:
      reader: a reader of samples.
      buf_size: samples in the buffer.
      seed: seeds the shuffling.

    Raises:
      ValueError: `buf_size` is not an int >= 0.

    >>> shuffled = shuffle(lambda: range(6), 3)
    >>> list(shuffled()), list(shuffled())
    ([2, 0, 1, 4, 5, 3], [2, 0, 1, 3, 4, 5])
    """
    source = of(reader)
    check_int("shuffle(buf_size)", buf_size, 0, "It counts the samples in the buffer.")
    check_int("shuffle(seed)", seed, 0, "It seeds a numpy generator.")
    return DecoratedReader(
        "shuffle", lambda epoch: _ShuffleIterator(source, epoch, buf_size, seed), [source]
    )


def map_readers(func: Callable[..., Item], *readers: ReaderLike[object]) -> DecoratedReader[Item]:
    """Yield `func(a, b, ...)` for the items of readers in parallel: Fluid's `map_readers`.

    Stops with the shortest reader. An exception from `func` has the sample's number in a note.

    Args:
      func: a function of one item from each reader.
      readers: one reader or more.

    Raises:
      ValueError: no reader was given.

    >>> list(map_readers(lambda a, b: a + b, lambda: [1, 2, 3], lambda: [10, 20]))
    [11, 22]
    """

    def apply(iterator: _StepIterator[Item]) -> Item:
        # The first source that ends lets its StopIteration through, and so ends the pass.
        items = [next(inner) for inner in iterator.inner]
        try:
            return func(*items)
        except Exception as error:
            where = f"map_readers({get_name(func)})"
            note(error, origin(where, iterator.position, iterator.epoch))
            raise

    return _decorate("map_readers", _sources("map_readers", readers), apply)


class _ChainIterator(IteratorBase[Item]):
    kind = "chain"

    def __init__(self, sources: Sequence[ReaderBase[Item]], epoch: int) -> None:
        self.epoch = epoch
        self._sources = sources
        self._part = 0
        self._inner: IteratorBase[Item] | None = None

    def __next__(self) -> Item:
        while self._part < len(self._sources) and not self._closed:
            if self._inner is None:
                self._inner = self._sources[self._part].iterate(self.epoch)
            for item in self._inner:
                return item
            # Closed at its end: threads and files of one part at a time.
            self._inner.close()
            self._inner = None
            self._part += 1
        raise StopIteration

    def _save(self) -> State:
        return {"part": self._part, "source": self._inner and self._inner.get_state()}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._release()
        self._inner = None
        self._part = state["part"]
        if state["source"] is not None:
            inner = self._inner = self._sources[self._part].iterate(self.epoch)
            inner.set_state(state["source"])

    def _release(self) -> None:
        if self._inner is not None:
            self._inner.close()


def chain(*readers: ReaderLike[Item]) -> DecoratedReader[Item]:
    """Yield all items of the first reader, then of the second, and so on: Fluid's `chain`.

    Each reader is opened when its turn comes.

    Raises:
      ValueError: no reader was given.

    >>> list(chain(lambda: [1, 2], lambda: [3]))
    [1, 2, 3]
    """
    sources = _sources("chain", readers)

    def length() -> int | None:
        lengths = [reader_length(source) for source in sources]
        return None if None in lengths else sum(n for n in lengths if n is not None)

    return DecoratedReader("chain", lambda epoch: _ChainIterator(sources, epoch), sources, length)


def _merge(items: Sequence[Any]) -> tuple[object, ...] | dict[str, object]:
    if not all(isinstance(item, Mapping) for item in items):
        return tuple(x for item in items for x in (item if isinstance(item, tuple) else (item,)))
    merged: dict[str, object] = {}
    for item in items:
        if twice := merged.keys() & item.keys():
            raise ValueError(
                f"compose got the key {min(map(str, twice))!r} twice, expected dict samples with "
                "different keys. Rename it with map_readers."
            )
        merged |= item
    return merged


def compose(*readers: ReaderLike[object], check_alignment: bool = True) -> DecoratedReader[Any]:
    """Join the samples of several readers into one: Fluid's `compose`.

    Tuples are flattened: `(1, 2)` and `3` give `(1, 2, 3)`. If all samples are dicts, they are
    merged.

    Args:
      readers: one reader or more.
      check_alignment: raise if one reader ends before another; otherwise stop with the shortest.

    Raises:
      ValueError: no reader was given.
      ComposeNotAligned: while reading, once a reader ends before the others.

    >>> list(compose(lambda: [(1, 2), (4, 5)], lambda: [3, 6]))
    [(1, 2, 3), (4, 5, 6)]
    """

    def join(iterator: _StepIterator[Any]) -> tuple[object, ...] | dict[str, object]:
        # A marker of its own: `None` is a sample like any other.
        items = [next(inner, _END) for inner in iterator.inner]
        ended = [number for number, item in enumerate(items) if item is _END]
        if check_alignment and 0 < len(ended) < len(items):
            iterator.close()
            raise ComposeNotAligned(
                f"compose got readers of different length: of {len(items)}, number "
                f"{', '.join(map(str, ended))} ended after {iterator.position} samples, expected "
                "readers of one length. Sample i is put together from sample i of each. Make "
                "them of one length, or pass check_alignment=False to stop with the shortest."
            )
        if ended:
            raise StopIteration
        return _merge(items)

    return _decorate("compose", _sources("compose", readers), join)


def firstn(reader: ReaderLike[Item], n: int) -> DecoratedReader[Item]:
    """Yield the first `n` items of each pass: Fluid's `firstn`.

    Raises:
      ValueError: `n` is not an int >= 0.

    >>> list(firstn(lambda: range(10), 3))
    [0, 1, 2]
    """
    source = of(reader)
    check_int("firstn(n)", n, 0, "It counts items.")

    def take(iterator: _StepIterator[Item]) -> Item:
        # Asked before the source is: nothing is read that is not returned.
        if iterator.position >= n:
            raise StopIteration
        return next(iterator.inner[0])

    def length() -> int | None:
        num_items = reader_length(source)
        return None if num_items is None else min(n, num_items)

    return _decorate("firstn", [source], take, length)


def _sources(decorator: str, readers: Sequence[ReaderLike[Item]]) -> list[ReaderBase[Item]]:
    if not readers:
        raise ValueError(
            f"{decorator} got no reader, expected one reader or more. It yields what its readers "
            "yield. Pass the readers as arguments, not as a list."
        )
    return [of(reader) for reader in readers]

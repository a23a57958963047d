"""Random-access data: any source with a length and an index, decoded in threads or processes."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from penstock.readers._contract import IteratorBase, ReaderBase, State
from penstock.readers._errors import check_int, message, note
from penstock.readers._order import EpochOrder, RecordOrder, Rows
from penstock.readers._pool import Workers, check_workers
from penstock.readers._rows import Augment, PendingRows, RowEngine, RowReader
from penstock.readers.sharding import BatchSize, Shard

Sample_co = TypeVar("Sample_co", covariant=True)


class Source(Protocol[Sample_co]):
    """Random access to records: Grain's `RandomAccessDataSource`, a list, a TFDS data source.

    Optional: `origin(index) -> str`, named in exceptions; `file_names` and `file_sizes`, which
    the shard rules by file need.
    """

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, index: int, /) -> Sample_co:
        """Return one record; called from several threads at once."""
        ...


class IndexedReader(ReaderBase):
    """A reader over a random-access source. Made by `indexed`, which documents it."""

    def __init__(
        self,
        read: RowReader,
        order: RecordOrder,
        transform: Callable[[Any], Any] | None,
        num_workers: int,
        workers: Workers,
        look_ahead: int,
    ) -> None:
        """Take checked arguments."""
        super().__init__()
        self.read = read
        self.order = order
        self.transform = transform
        self.num_workers = num_workers
        self.workers: Workers = workers
        self.look_ahead = look_ahead

    def __len__(self) -> int:
        """Return the number of batches (samples without a batch size) in a pass."""
        return len(self.order)

    def iterate(self, epoch: int) -> "IndexedIterator":
        """Return an iterator over `epoch`."""
        return IndexedIterator(self, epoch)


class IndexedIterator(IteratorBase):
    """One pass over a random-access source, reading a few batches ahead."""

    kind = "indexed"

    def __init__(self, reader: IndexedReader, epoch: int) -> None:
        """Start at the first batch of `epoch`; workers start with the first item."""
        self.epoch = epoch
        self._config = reader
        self._order: EpochOrder = reader.order.epoch(epoch)
        self._is_single = reader.order.batch_size is None
        self._position = self._ahead = 0
        self._flying: deque[tuple[PendingRows, int]] = deque()  # with the position after each
        self._engine = RowEngine(reader.read, reader.num_workers, reader.workers, self._is_single)
        depth = reader.look_ahead + 1
        # Of single samples, enough to keep every worker busy.
        self._depth = depth * max(reader.num_workers, 1) if self._is_single else depth

    def __next__(self) -> Any:
        """Return the next batch, leaves `[b, ...]`; without a batch size the next sample."""
        if self._closed:
            raise StopIteration
        while len(self._flying) < self._depth and self._ahead < self._order.total:
            self._launch()
        if not self._flying:
            self._position = self._ahead
            self._engine.close()
            raise StopIteration
        pending, next_position = self._flying.popleft()
        try:
            item = pending.result()
            if self._config.transform is not None:
                item = self._transform(self._config.transform, item, pending.indices)
        except BaseException:
            self.close()
            raise
        self._position = next_position
        return item

    def _launch(self) -> None:
        """Begin to read the next batch of this shard."""
        indices = _as_list(self._order.rows(self._ahead))
        self._ahead = min(self._ahead + self._order.step, self._order.total)
        if indices or not self._is_single:
            self._flying.append((self._engine.submit(indices, self.epoch), self._ahead))

    def _transform(self, transform: Callable[[Any], Any], item: Any, indices: list[int]) -> Any:
        try:
            return transform(item)
        except Exception as error:
            ends = f"{indices[0]} to {indices[-1]}" if indices else "none"
            note(error, f"in {self._config.read.name}(transform=), records {ends}")
            raise

    def _save(self) -> State:
        return self._config.order.save_position(self._position)

    def _load(self, state: State) -> None:
        self._drop()
        self._position = self._ahead = self._config.order.check_position(state, "indexed")
        self._order = self._config.order.epoch(self.epoch)

    def _drop(self) -> None:
        for pending, _ in self._flying:
            pending.cancel()
        self._flying.clear()

    def _release(self) -> None:
        self._drop()
        self._engine.close()


def indexed(
    source: Source[Any],
    batch_size: BatchSize | None,
    *,
    shuffle: bool = False,
    seed: int = 0,
    drop_remainder: bool = False,
    decode: Callable[[Any], Any] | None = None,
    augment: Augment | None = None,
    transform: Callable[[Any], Any] | None = None,
    num_workers: int = 0,
    workers: Workers = "thread",
    look_ahead: int = 2,
    shard: Shard | None = None,
    name: str = "indexed",
) -> IndexedReader:
    """Read batches from a random-access source, decoded by workers, in an exact order.

    All records are shuffled, not a buffer of them; the order depends on `(seed, epoch)` alone.

    Args:
      source: has `len(source)` and `source[i]`; see `Source`.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      shuffle: draw a new order each epoch.
      seed: decides the orders, and what `augment` draws.
      drop_remainder: leave out a last batch that is not full.
      decode: a function of a record, run by the workers; returns arrays of fixed shapes.
      augment: a function of a sample and a numpy generator, run by the workers after `decode`;
        record `i` draws from `(seed, epoch, i)`, whatever the workers, shards and resumes.
      transform: a function of a batch (of a sample, without a batch size), run by the caller.
      num_workers: threads or processes; 0 reads in the thread that iterates.
      workers: `"thread"`, right for opencv and numpy, or `"process"`, where what the workers
        run is pickled and a script needs `if __name__ == "__main__":`.
      look_ahead: batches read ahead.
      shard: the part this process reads.
      name: names the reader in exceptions.

    Returns:
      A reader of batches with leaves `[b, ...]`.

    Raises:
      ValueError: an empty source, an argument out of range, files asked of one without.
      TypeError: no source; or processes, and something that cannot be pickled.

    >>> reader = indexed([{"x": i} for i in range(5)], 2, decode=lambda s: {"x": s["x"] * 10})
    >>> [batch["x"].tolist() for batch in reader]
    [[0, 10], [20, 30], [40]]
    """
    _check_source(name, source)
    check_int(f"{name}(num_workers)", num_workers, 0, "0 reads without workers")
    check_int(f"{name}(look_ahead)", look_ahead, 0, "It counts batches")
    check_workers(name, workers, source, decode, augment)
    order = _order_of(source, batch_size, shuffle, seed, drop_remainder, shard)
    read = RowReader(name, source, decode, augment, seed)
    return IndexedReader(read, order, transform, num_workers, workers, look_ahead)


def _check_source(name: str, source: Any) -> None:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise TypeError(
            message(
                name,
                type(source).__name__,
                "a source with len(source) and source[i]",
                "Records are reached by index",
                "Use readers.of for what can only be iterated",
            )
        )
    check_int(f"{name}(number of records)", len(source), 1, "An empty source trains nothing")


def _order_of(
    source: Any,
    batch_size: BatchSize | None,
    shuffle: bool,
    seed: int,
    drop_remainder: bool,
    shard: Shard | None,
) -> RecordOrder:
    return RecordOrder(
        num_records=len(source),
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_remainder=drop_remainder,
        shard=shard or Shard(),
        file_names=tuple(map(str, getattr(source, "file_names", ()))),
        file_sizes=tuple(getattr(source, "file_sizes", ())),
    )


def _as_list(rows: Rows) -> list[int]:
    return list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()

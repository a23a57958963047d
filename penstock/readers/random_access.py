"""Random-access data: any source with a length and an index, decoded in threads or processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from penstock.readers._decoding import Augment
from penstock.readers._errors import check_int, message, note
from penstock.readers._order import RecordOrder
from penstock.readers._pool import Workers, check_workers
from penstock.readers._row_reader import RowOptions, RowReader
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


class SourceRows:
    """A user's source as `Rows`; a record is read where it is decoded, so that it can be blamed."""

    damages: Sequence[Exception] = ()
    mean_record_bytes = 1 << 13  # unknown: sixteen records a task

    def __init__(self, source: Source[Any], name: str) -> None:
        """Take the source, and the name the reader has in exceptions."""
        self.source, self.name = source, name

    def read(self, records: Sequence[int]) -> Iterator[int]:
        """Yield the numbers: `SourceDecoder` looks them up."""
        yield from records

    def blame(self, error: Exception, record: int) -> Exception:
        """Note the record, and where it comes from if the source can tell."""
        origin = getattr(self.source, "origin", None)
        where = f": {origin(record)}" if callable(origin) else ""
        note(error, f"in {self.name}, record {record}{where}")
        return error

    def is_damage(self, error: Exception) -> bool:
        """Return that it is not: what a user's source raises is for the user."""
        return False

    def reopened(self) -> "SourceRows":
        """Return itself: nothing is open."""
        return self

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class SourceDecoder:
    """Look a record up in a user's source."""

    source: Source[Any]
    kind: str = "indexed"
    is_random: bool = False
    pad_values: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, payload: int, random: np.random.Generator | None) -> Any:
        """Return the sample; the payload is the record's number."""
        return self.source[payload]


class IndexedReader(RowReader):
    """A reader over a random-access source. Made by `indexed`, which documents it."""

    def __init__(
        self, source: Source[Any], order: RecordOrder, name: str, options: RowOptions
    ) -> None:
        """Take checked arguments."""
        super().__init__(name, SourceDecoder(source=source), options)
        self._source_rows, self._order = SourceRows(source, name), order

    @property
    def rows(self) -> SourceRows:
        """Return the records."""
        return self._source_rows

    @property
    def order(self) -> RecordOrder:
        """Return which records make which batch."""
        return self._order


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
      augment: as `decode`, after it, with a numpy generator made from `(seed, epoch, index)`.
      transform: a function of a batch (of a sample, without a batch size), run by the caller.
      num_workers: threads or processes; 0 reads in the thread that iterates.
      workers: `"thread"`, or `"process"`, where what they run is pickled (see `xmap_readers`).
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
    options = RowOptions(
        decode=decode,
        augment=augment,
        transform=transform,
        num_workers=num_workers,
        workers=workers,
        look_ahead=look_ahead,
    )
    return IndexedReader(source, order, name, options)


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

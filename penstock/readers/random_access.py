"""Random-access data: any source with a length and an index, decoded in threads or processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol, TypeGuard, TypeVar, Unpack

from penstock._errors import check_int
from penstock.readers import _tree
from penstock.readers._errors import note
from penstock.readers._order import RecordOrder
from penstock.readers._random_access_reader import Decoder, RandomAccessReader
from penstock.readers._read_ahead import check_workers
from penstock.readers._read_options import ReadKeywords, ReadOptions
from penstock.readers.sharding import BatchSize

Sample_co = TypeVar("Sample_co", covariant=True)


class Source(Protocol[Sample_co]):
    """Random access to records: Grain's `RandomAccessDataSource`, a list, a TFDS data source.

    `indexed` says what else it may have.
    """

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, index: int, /) -> Sample_co:
        """Return one record; called from several threads at once."""
        ...


class _EncodedSource(Protocol):
    """A source that also gives its records encoded, which `cache_records` keeps."""

    def encoded(self, index: int) -> object: ...

    def decoded(self, index: int, encoded: object, /) -> object: ...


class SourceRecords:
    """A user's source as `Records`."""

    damages: Sequence[Exception] = ()
    # Unknown. This size makes tasks of 32 records.
    mean_record_bytes = 1 << 13

    def __init__(self, source: Source[object], name: str) -> None:
        self.source, self.name = source, name

    def read(self, records: Sequence[int]) -> Iterator[tuple[int, object] | Exception]:
        """Yield number and content of each record, or what the source raised."""
        read_one = self.source.encoded if _is_encoded(self.source) else self.source.__getitem__
        for record in records:
            try:
                payload = record, read_one(record)
            except Exception as error:
                # In the record's place, not raised here: the reader decides whether it is skipped.
                payload = self.blame(error, record)
            yield payload

    def blame(self, error: Exception, record: int) -> Exception:
        """Note the record, and where it comes from if the source can tell."""
        origin = getattr(self.source, "origin", None)
        where = f": {origin(record)}" if callable(origin) else ""
        note(error, f"in {self.name}, record {record}{where}")
        return error

    def reopen(self) -> SourceRecords:
        """Return itself: nothing is open."""
        return self

    def close(self) -> None:
        """Do nothing."""


def _decode(
    source: Source[object], is_changed: bool, payload: tuple[int, object], _: object
) -> object:
    """Decode a record of a user's source, where the source does not give it decoded."""
    record, content = payload
    sample = source.decoded(record, content) if _is_encoded(source) else content
    # The source's own, or the cache's: written into, it would be another one in the next epoch.
    return _tree.copy_arrays(sample) if is_changed else sample


def _is_encoded(source: object) -> TypeGuard[_EncodedSource]:
    # Both or none: what one method encodes, only the other can decode.
    return all(callable(getattr(source, name, None)) for name in ("encoded", "decoded"))


class IndexedReader(RandomAccessReader):
    """A reader over a random-access source. Made by `indexed`, which documents it."""

    def __init__(self, source: Source[object], options: ReadOptions) -> None:
        _check_source(options.name, source)
        check_workers(options.name, options.workers, {"source": source})
        is_by_sample = options.batch_size is None and options.transform is not None
        is_changed = is_by_sample or bool(options.decode or options.augment)
        decode = partial(_decode, source, is_changed)
        super().__init__(Decoder(kind="indexed", decode=decode), options)
        self.source = source
        self._index()

    def index(self) -> tuple[SourceRecords, RecordOrder]:
        """Return the source's records, and which of them make which batch."""
        source = self.source
        file_names = tuple(map(str, getattr(source, "file_names", ())))
        file_sizes = tuple(getattr(source, "file_sizes", ()))
        order = self.options.order(len(source), file_names, file_sizes)
        return SourceRecords(source, self.name), order

    @property
    def last_batch_size(self) -> int | None:
        """How many examples the last batch of an epoch has, where one process reads batches."""
        return self.order.last_batch_size


def indexed(
    source: Source[object],
    batch_size: BatchSize | None,
    *,
    name: str = "indexed",
    **options: Unpack[ReadKeywords],
) -> IndexedReader:
    """Read batches from a random-access source, decoded by workers, in a reproducible order.

    Shuffling covers all records, not a window. The order depends only on `(seed, epoch)`.

    Args:
      source: any object with `len(source)` and `source[i]`: a list, a Grain or TFDS data source.
        It may also have `origin(index)`, which error messages show; `file_names` and `file_sizes`,
        for sharding by file; and `encoded(index)` with `decoded(index, encoded)`: `cache_records`
        then keeps the encoded records.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      name: the reader's name in error messages.
      options: keywords of `records.ReadOptions`, such as `shuffle=True`. By default `num_workers`
        is 0.

    Returns:
      A reader of batches with leaves `[b, ...]`.

    Raises:
      ValueError: an empty source, an option out of range, or sharding by file of a source without
        files.
      TypeError: `source` has no length or index; or `workers="process"` with something that cannot
        be pickled.

    >>> reader = indexed([{"x": i} for i in range(5)], 2, decode=lambda s: {"x": s["x"] * 10})
    >>> [batch["x"].tolist() for batch in reader]
    [[0, 10], [20, 30], [40]]
    """
    return IndexedReader(
        source, ReadOptions.from_keywords(name, batch_size, {"num_workers": 0, **options})
    )


def _check_source(name: str, source: Source[object]) -> None:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise TypeError(
            f"{name} got {type(source).__name__}, expected a source with len(source) and "
            "source[i]. Records are reached by index. Use readers.of for what can only be iterated."
        )
    check_int(f"{name}(number of records)", len(source), 1, "An empty source trains nothing")

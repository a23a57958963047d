"""The reader over record files: what `readers.tfrecord` and `readers.ofrecord` make."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.readers._decoding import Augment, Decode, Decoder
from penstock.readers._errors import message
from penstock.readers._order import RecordOrder
from penstock.readers._pool import num_usable_cores
from penstock.readers._row_reader import RowOptions, RowReader
from penstock.readers.records.files import RecordFiles, RecordFormat
from penstock.readers.sharding import BatchSize, Shard, resolve_batch_size

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How records become batches: the options that `tfrecord` and `ofrecord` share.

    Args:
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      shuffle: draw a new order of all records each epoch.
      seed: decides the orders, and what `augment` and random preprocessors draw.
      drop_remainder: leave out a last batch that is not full.
      shard: the part this process reads.
      on_error: `"raise"`, or `"skip"`: a record that is damaged or not what was declared is left
        out, its batch is that much shorter, `iterator.num_skipped` counts it and one log line a
        pass reports it. A damaged length hides the rest of its file, which then counts as one.
        Exceptions of your own functions are raised either way, with the record's file and byte
        offset in a note.
      decode: a function of one sample, run in the threads, e.g. to decode an image.
      augment: a function of one sample and a numpy generator, run in the threads after `decode`;
        record `i` draws from `(seed, epoch, i)`.
      transform: a function of a batch (of a sample, without a batch size), run by the caller.
      num_workers: threads, one a core by default; 0 decodes in the calling thread.
      cache_records: keep the encoded records in memory after the first pass.

    Raises:
      ValueError: an unknown `on_error`, a negative number of threads, a batch size below 1.
      ShardError: a batch size that is not a multiple of the number of processes.
    """

    batch_size: BatchSize | None = None
    shuffle: bool = False
    seed: int = 0
    drop_remainder: bool = False
    shard: Shard = field(default_factory=Shard)
    on_error: OnError = "raise"
    decode: Decode | None = None
    augment: Augment | None = None
    transform: Callable[[Any], Any] | None = None
    num_workers: int | None = None
    cache_records: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.on_error not in ("raise", "skip"):
            raise ValueError(
                message(
                    "on_error",
                    repr(self.on_error),
                    "'raise' or 'skip'",
                    "A record that cannot be read stops the run or is left out and counted",
                    "Pass on_error='skip' to leave such records out",
                )
            )
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(
                message(
                    "num_workers",
                    self.num_workers,
                    "an int >= 0",
                    "0 decodes in the calling thread",
                    "Leave it out for one thread a core",
                )
            )
        if self.batch_size is not None:
            resolve_batch_size(self.batch_size, self.shard)

    @property
    def of_rows(self) -> RowOptions:
        """Return what the iterator needs of them; one thread for each core by default."""
        return RowOptions(
            decode=self.decode,
            augment=self.augment,
            transform=self.transform,
            num_workers=num_usable_cores() if self.num_workers is None else self.num_workers,
            skips_damage=self.on_error == "skip",
        )


class RecordReader(RowReader):
    """A reader over record files. Made by `tfrecord` and `ofrecord`, which document it.

    Args:
      paths: the files, in order.
      form: their framing, compression and cache.
      decoder: payload to sample.
      options: batches, order, errors, threads.
    """

    def __init__(
        self, paths: Sequence[str], form: RecordFormat, decoder: Decoder, options: ReadOptions
    ) -> None:
        """Take what is checked; files are indexed when first needed."""
        super().__init__(decoder.kind, decoder, options.of_rows)
        self.paths, self.form, self.options = list(paths), form, options
        self._indexing = threading.Lock()
        self._indexed: tuple[RecordFiles, RecordOrder] | None = None
        self.cache: dict[int, bytes] | None = {} if options.cache_records else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave locks and cached records behind."""
        state = super().__getstate__()
        return {**state, "_indexing": None, "cache": None if self.cache is None else {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make new locks."""
        super().__setstate__(state)
        self._indexing = threading.Lock()

    @property
    def rows(self) -> RecordFiles:
        """Return the records of the indexed files.

        Raises:
          RecordError: a file is damaged and errors are raised, not skipped.
          OSError: a file cannot be opened.
        """
        return self._index()[0]

    @property
    def order(self) -> RecordOrder:
        """Return which records make which batch; raises as `rows` does."""
        return self._index()[1]

    def _index(self) -> tuple[RecordFiles, RecordOrder]:
        with self._indexing:
            if self._indexed is None:
                options, files = self.options, RecordFiles(self.paths, self.form)
                if files.damages and options.on_error == "raise":
                    raise files.damages[0]
                order = RecordOrder(
                    num_records=len(files),
                    batch_size=options.batch_size,
                    shuffle=options.shuffle,
                    seed=options.seed,
                    drop_remainder=options.drop_remainder,
                    shard=options.shard,
                    file_names=tuple(files.paths),
                    file_sizes=files.sizes,
                )
                self._indexed = files, order
            return self._indexed

"""`ReadOptions`: how records become batches, the same for every reader of records by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from penstock._cores import num_usable_cores
from penstock._errors import check_int, check_known, check_type
from penstock.readers._batching import Padding
from penstock.readers._order import RecordOrder
from penstock.readers._read_ahead import Workers as Workers
from penstock.readers._read_ahead import check_workers
from penstock.readers.in_memory import Transform as Transform
from penstock.readers.sharding import BatchSize, Shard, choose_shard, resolve_batch_size

OnError = Literal["raise", "skip"]
# Of the user's own samples, whose type no reader knows; what they return is passed on as it is.
Decode = Callable[[Any], object]
Augment = Callable[[Any, np.random.Generator], object]


class ReadKeywords(TypedDict, total=False):
    """The options that the reader functions take as keywords; `ReadOptions` says what they do."""

    shuffle: bool
    seed: int
    drop_remainder: bool
    shard: Shard | None
    on_error: OnError
    decode: Decode | None
    augment: Augment | None
    pad: Mapping[str, Padding] | None
    transform: Transform | None
    num_workers: int | None
    workers: Workers
    look_ahead: int
    cache_records: bool


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How records become batches: the options that all readers with random access share.

    Args:
      name: the reader's name in error messages.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      shuffle: draw a new order of all records each epoch.
      seed: seeds the shuffling, `augment` and random preprocessors.
      drop_remainder: drop the last batch if it is not full.
      shard: the part of the data that this process reads. By default it follows from
        `ps.distributed.initialize()`; `Shard()` reads everything. Without a batch size and a
        shard, every process reads all samples, and `batch` divides them.
      on_error: what to do with a record that raises a `RecordError`: it is damaged, or does not
        hold what was declared. `"raise"` raises the error. `"skip"` leaves the record out, which
        makes its batch shorter; `iterator.num_skipped` counts such records, and one log line per
        pass reports them. Behind a damaged length the rest of the file is unreadable, and counts
        as one record. Other exceptions from your functions are raised in both cases, with the
        record's origin (file and byte offset) in a note.
      decode: a function of one sample, run by the workers, e.g. to decode an image.
      augment: a function of one sample and a numpy generator, run by the workers after `decode`.
        The generator of record `i` is seeded with `(seed, epoch, i)`.
      pad: maps entries whose length varies between samples to their `Padding`; entries of nested
        dicts are named `"outer/inner"`. Applied after `decode` and `augment`.
      transform: a function of a batch, or of a sample without a batch size, run in the thread
        that iterates.
      num_workers: number of threads or processes; `None` for one per core, 0 to decode in the
        thread that iterates.
      workers: `"thread"` suits opencv and numpy, which release the GIL. `"process"` pickles what
        the workers run, and a script then needs `if __name__ == "__main__":`. Processes are kept
        between passes, until the reader is closed or garbage-collected.
      look_ahead: number of batches to read ahead.
      cache_records: keep records in memory once they have been read, still encoded.

    Raises:
      ValueError: an unknown `on_error` or `workers`, or a number out of range.
      TypeError: `workers="process"` with a function that cannot be pickled; or a value of `pad`
        that is not a `Padding`.
      ShardError: the batch size is not a multiple of the number of processes.

    >>> ReadOptions(batch_size=4, shuffle=True, num_workers=2).order(10).total
    10
    """

    name: str = "reader"
    batch_size: BatchSize | None = None
    shuffle: bool = False
    seed: int = 0
    drop_remainder: bool = False
    shard: Shard | None = None
    on_error: OnError = "raise"
    decode: Decode | None = None
    augment: Augment | None = None
    pad: Mapping[str, Padding] = field(default_factory=dict)
    transform: Transform | None = None
    num_workers: int | None = None
    workers: Workers = "thread"
    look_ahead: int = 2
    cache_records: bool = False

    def __post_init__(self) -> None:
        why = "A record that cannot be read stops the run or is left out and counted."
        check_known(f"{self.name}(on_error)", self.on_error, get_args(OnError), why, ValueError)
        if self.num_workers is not None:
            why = "0 decodes in the calling thread, None is one worker a core."
            check_int(f"{self.name}(num_workers)", self.num_workers, 0, why)
        for entry, padding in self.pad.items():
            expected = "a readers.Padding, such as readers.Padding(value=0, max_length=128)."
            check_type(f"{self.name}(pad[{entry!r}])", padding, Padding, expected)
        check_int(f"{self.name}(look_ahead)", self.look_ahead, 0, "It counts batches.")
        check_workers(self.name, self.workers, {"decode": self.decode, "augment": self.augment})
        # When the reader is made: its files may be indexed much later.
        if self.batch_size is not None:
            object.__setattr__(self, "shard", choose_shard(self.shard, self.batch_size))
            resolve_batch_size(self.batch_size, self.shard)

    @classmethod
    def from_keywords(
        cls, name: str, batch_size: BatchSize | None, keywords: ReadKeywords
    ) -> ReadOptions:
        """Return the options that a reader function got.

        Raises:
          TypeError: a keyword that is none.
        """
        names = list(ReadKeywords.__annotations__)
        for key in keywords:
            thing, why = f"{name} got an unexpected keyword argument ", "They are ReadOptions."
            check_known(thing, key, names, why, TypeError)
        options: dict[str, Any] = dict(keywords)
        # `None` for it is a default that is made anew each time.
        if options.get("pad") is None:
            options.pop("pad", None)
        return cls(name=name, batch_size=batch_size, **options)

    @property
    def worker_count(self) -> int:
        """Return the number of workers, 0 for the calling thread."""
        return num_usable_cores() if self.num_workers is None else self.num_workers

    def order(
        self,
        num_records: int,
        file_names: tuple[str, ...] = (),
        file_sizes: tuple[int, ...] = (),
    ) -> RecordOrder:
        """Return the order of records: which of them make up which batch."""
        return RecordOrder(
            num_records=num_records,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            drop_remainder=self.drop_remainder,
            shard=choose_shard(self.shard, self.batch_size),
            file_names=file_names,
            file_sizes=file_sizes,
        )

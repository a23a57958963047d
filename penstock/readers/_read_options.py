"""`ReadOptions`: how records become batches, the same for every reader of records by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np

from penstock._errors import message
from penstock.readers._errors import check_int
from penstock.readers._order import RecordOrder
from penstock.readers._ragged import Padding
from penstock.readers._workers import Workers as Workers
from penstock.readers._workers import check_workers, num_usable_cores
from penstock.readers.in_memory import Transform as Transform
from penstock.readers.sharding import BatchSize, Shard, choose_shard, resolve_batch_size

OnError = Literal["raise", "skip"]
# Of the user's own samples, whose type no reader knows; what they return is passed on as it is.
Decode = Callable[[Any], object]
Augment = Callable[[Any, np.random.Generator], object]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How records become batches: the options that all readers of records by number share.

    Args:
      name: names the reader in exceptions.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      shuffle: draw a new order of all records each epoch.
      seed: decides the orders, and what `augment` and random preprocessors draw.
      drop_remainder: leave out a last batch that is not full.
      shard: the part this process reads, by itself that of the joined processes; `Shard()` is all.
        Single samples are all there, and `batch` divides them.
      on_error: `"raise"`, or `"skip"`: a record that is damaged or not what was declared, a
        `RecordError`, is left out, its batch is that much shorter, `iterator.num_skipped` counts it
        and one log line a pass reports it. A damaged length hides the rest of its file, which then
        counts as one. Other exceptions of your own functions are raised either way, with the
        record's origin (file and byte offset) in a note.
      decode: a function of one sample, run by the workers, e.g. to decode an image.
      augment: a function of one sample and a numpy generator, run by the workers after `decode`;
        record `i` draws from `(seed, epoch, i)`.
      pad: entry -> `Padding`, for entries whose length differs between samples; those of nested
        dicts as `"outer/inner"`. Done after `decode` and `augment`.
      transform: a function of a batch (of a sample, without a batch size), run by the caller.
      num_workers: threads or processes, `None` for one a core; 0 decodes in the calling thread.
      workers: `"thread"`, right for opencv and numpy, which release the GIL, or `"process"`, where
        what they run is pickled and a script needs `if __name__ == "__main__":`. Processes are
        kept from pass to pass, until the reader is closed or dropped.
      look_ahead: batches read ahead.
      cache_records: keep the records in memory after they were first read, encoded as they are.

    Raises:
      ValueError: an unknown `on_error` or `workers`, a number out of range.
      TypeError: processes, and a function that cannot be pickled; or a `pad` that is none.
      ShardError: a batch size that is not a multiple of the number of processes.

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
        if self.on_error not in ("raise", "skip"):
            raise ValueError(
                message(
                    f"{self.name}(on_error)",
                    repr(self.on_error),
                    "'raise' or 'skip'",
                    "A record that cannot be read stops the run or is left out and counted",
                    "Pass on_error='skip' to leave such records out",
                )
            )
        if self.num_workers is not None:
            why = "0 decodes in the calling thread, None is one worker a core"
            check_int(f"{self.name}(num_workers)", self.num_workers, 0, why)
        for entry, padding in self.pad.items():
            if not isinstance(padding, Padding):
                raise TypeError(
                    message(
                        f"{self.name}(pad[{entry!r}])",
                        repr(padding),
                        "a readers.Padding",
                        "It says what padding holds and how long entries are",
                        "Pass e.g. readers.Padding(value=0, max_length=128)",
                    )
                )
        check_int(f"{self.name}(look_ahead)", self.look_ahead, 0, "It counts batches")
        check_workers(self.name, self.workers, {"decode": self.decode, "augment": self.augment})
        # When the reader is made: its files may be indexed much later.
        if self.batch_size is not None:
            object.__setattr__(self, "shard", choose_shard(self.shard, self.batch_size))
            resolve_batch_size(self.batch_size, self.shard)

    @classmethod
    def from_arguments(cls, name: str, arguments: Mapping[str, object]) -> Self:
        """Return the options among a reader function's arguments, which are its first `locals()`.

        The functions spell the options out, for editors and `help`. What an option is called, takes
        and does is written here alone: a test compares the signatures with the fields.

        Args:
          name: names the reader in exceptions.
          arguments: by name; those that are no option are left out.
        """
        known = [each.name for each in fields(cls)]
        options: dict[str, Any] = {key: arguments[key] for key in known if key in arguments}
        options["name"] = name
        # A signature has `None` for it: a default that is made anew each time.
        if options.get("pad") is None:
            options.pop("pad", None)
        return cls(**options)

    @property
    def yields_all(self) -> bool:
        """Whether it yields single samples, all of them to every process."""
        return self.batch_size is None and self.shard is None

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
        """Return which of the records make which batch."""
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

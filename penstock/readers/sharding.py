"""Sharding: which part of the data a process reads, as a value passed to a reader.

A reader that gets none takes, of the batches it makes, this process's part: by itself where
several processes have been joined when it is made, and `Shard()` is all of them. What yields
single samples yields all of them everywhere, in one order, and `batch` divides them.

Three rules. `"records"` is the default: every *global batch* is cut into one contiguous chunk
a process, so the batches of all processes laid side by side are the very batches one process
would have read, in every epoch, and all processes take the same number of steps.
`"files_round_robin"` is FastNN's (`file i` goes to process `i % count`) and
`"files_contiguous"` is OneFlow's (balanced contiguous ranges of parts); by both a process yields
the records of its own files only, at the price of shares that are only as equal as the files are,
and of states that do not move to another number of processes.

By every rule each process opens and indexes all files, as the number of steps depends on all of
them. An index is made from the records' headers and cached; compressed files are decompressed for
it, into the cache folder.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from penstock._errors import check_int, check_known
from penstock.readers._errors import ShardError

ShardRule = Literal["records", "files_round_robin", "files_contiguous"]
File = TypeVar("File")


@dataclass(frozen=True)
class Shard:
    """One process's part of the data.

    Args:
      index: the index of this process, from 0.
      count: number of processes that read.
      rule: how data is divided: `"records"` divides by record; `"files_round_robin"` (FastNN) and
        `"files_contiguous"` (OneFlow) give whole files to each process.

    Raises:
      ShardError: index or count out of range, or an unknown rule.

    >>> Shard(1, 2).rows(0, 64)
    (32, 64)
    >>> Shard(2, 3, rule="files_contiguous").select(list("abcdefgh"))
    ['g', 'h']
    """

    index: int = 0
    count: int = 1
    rule: ShardRule = "records"

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ShardError(
                f"Shard got index={self.index}, count={self.count}, expected 0 <= index < count. "
                "Processes count from 0. Leave it out for the part of this process."
            )
        why = "Leave it out to divide by record."
        check_known("Shard rule", self.rule, get_args(ShardRule), why, ShardError)

    def check_division(self, argument: str, size: int) -> None:
        """Check that a number of samples of the global batch divides over the processes.

        Raises:
          ShardError: the parts would differ, and with them the programs that are compiled.
        """
        if size % self.count:
            raise ShardError(
                f"{argument} got {size} over {self.count} processes, expected a multiple of "
                f"{self.count}. It is of the global batch, and every process reads an equal part "
                f"of it. Pass {size + -size % self.count} on any number of processes."
            )

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """Return this process's contiguous part of the positions `[start, stop)`.

        Parts are balanced: the first `(stop - start) % count` processes get one more.

        >>> [Shard(i, 3).rows(0, 8) for i in range(3)]
        [(0, 3), (3, 6), (6, 8)]
        """
        base, extra = divmod(stop - start, self.count)
        first = start + self.index * base + min(self.index, extra)
        return first, first + base + (self.index < extra)

    def select(self, files: Sequence[File]) -> list[File]:
        """Return the files this process reads, by the shard's rule.

        `"records"` returns all files, in the order given. `"files_round_robin"` sorts the names
        and takes every `count`-th; `"files_contiguous"` takes a contiguous range of the order
        given.

        Raises:
          ShardError: a rule by file, and fewer files than processes.

        Warns:
          UserWarning: `"files_round_robin"`, and the files do not divide evenly.
        """
        chosen = self.select_indices([str(name) for name in files])
        self.warn_if_uneven(len(files))
        return [files[i] for i in chosen]

    def select_indices(self, names: Sequence[str]) -> list[int]:
        """Return the positions in `names` of the files this process reads; never warns.

        Raises:
          ShardError: a rule by file, and fewer files than processes.
        """
        if self.rule == "records":
            return list(range(len(names)))
        if len(names) < self.count:
            raise ShardError(
                f"Shard(rule={self.rule!r}) got {len(names)} files for {self.count} processes, "
                "expected at least one file a process. This rule gives whole files to processes. "
                "Split the data into more files, or use rule='records'."
            )
        if self.rule == "files_contiguous":
            return list(range(*self.rows(0, len(names))))
        # FastNN sorts the names before it deals the files out.
        by_name = sorted(range(len(names)), key=lambda i: names[i])
        return by_name[self.index :: self.count]

    def warn_if_uneven(self, num_files: int) -> None:
        """Warn if `"files_round_robin"` does not divide the files evenly over the processes."""
        if self.rule == "files_round_robin" and num_files % self.count:
            warnings.warn(
                f"{num_files} files do not divide evenly over {self.count} processes: some read "
                "one file more than others. Use a multiple, or rule='records'.",
                UserWarning,
                stacklevel=3,
            )


# What the loader of a data set reads is divided when it has been loaded, and not before as well.
_READS_WHOLE: ContextVar[bool] = ContextVar("penstock_reads_whole", default=False)


@contextlib.contextmanager
def read_whole() -> Iterator[None]:
    """Have readers that are made meanwhile read all, unless they are told otherwise."""
    token = _READS_WHOLE.set(True)
    try:
        yield
    finally:
        _READS_WHOLE.reset(token)


def find_own_shard() -> Shard:
    """Return this process's part where several have been joined, else all."""
    # Neither imports JAX nor starts its backend, as jax.process_index() does: readers may be made
    # before the processes are joined, which must come first.
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None or state.client is None or _READS_WHOLE.get():
        return Shard()
    return Shard(state.process_id, state.num_processes)


def choose_shard(shard: Shard | None, batch_size: BatchSize | None) -> Shard:
    """Return the part of the data that a reader takes: what it is given, or this process's.

    Single samples are not divided: `batch` does it, by the very batches of one process.
    """
    if shard is not None:
        return shard
    return Shard() if batch_size is None else find_own_shard()


@dataclass(frozen=True, kw_only=True)
class PerDevice:
    """A batch size per device, FastNN's convention, instead of the global batch size.

    Args:
      batch_size: samples per step on each device.
      num_devices: number of devices over all processes, `jax.device_count()`.

    Raises:
      ValueError: one of them is not a positive int.

    >>> PerDevice(batch_size=32, num_devices=8).global_batch_size
    256
    """

    batch_size: int
    num_devices: int

    def __post_init__(self) -> None:
        check_int("PerDevice(batch_size)", self.batch_size, 1, "It counts samples on a device.")
        check_int(
            "PerDevice(num_devices)", self.num_devices, 1, "It counts those of all processes."
        )

    @property
    def global_batch_size(self) -> int:
        """Return the number of samples per step over all devices."""
        return self.batch_size * self.num_devices


BatchSize = int | PerDevice


def resolve_batch_size(batch_size: BatchSize, shard: Shard | None = None) -> int:
    """Return the global batch size, checked against the shard."""
    size = batch_size.global_batch_size if isinstance(batch_size, PerDevice) else batch_size
    why = "Pass the global batch size, or readers.PerDevice(batch_size=..., num_devices=...)."
    size = check_int("batch_size", size, 1, f"A batch is a number of samples. {why}")
    if shard is not None:
        shard.check_division("batch_size", size)
    return size

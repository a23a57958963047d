"""The order in which a random-access reader reads: epochs, shuffling, batches and shards."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock._errors import check_int, check_known
from penstock.readers._contract import State, check_state
from penstock.readers.sharding import BatchSize, Shard, resolve_batch_size

RowIndices = slice | np.ndarray
_MEANING = ("num_records", "seed", "shuffle", "rule", "part", "count")


@dataclass(frozen=True, kw_only=True)
class RecordOrder:
    """Which records make which batch, as a pure function of seed, epoch and shard.

    A *position* counts records of the global order. So it means the same for any batch size and,
    divided by record, on any number of shards; divided by file, a state holds that number. Without
    a batch size each item is one record, and the shards take records in turn.

    `num_records` counts those of all shards, `file_sizes` those of each file, for the file rules.
    `chosen` says which records these are, rising, if there are others. `step` is the records of one
    global batch; without a batch size, one record a shard.
    """

    num_records: int
    batch_size: BatchSize | None = None
    shuffle: bool = False
    seed: int = 0
    drop_remainder: bool = False
    shard: Shard = field(default_factory=Shard)
    file_names: tuple[str, ...] = ()
    file_sizes: tuple[int, ...] = ()
    chosen: np.ndarray | None = field(default=None, repr=False, compare=False)
    step: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, "It seeds a numpy generator.")
        size = self.batch_size
        step = self.shard.count if size is None else resolve_batch_size(size, self.shard)
        object.__setattr__(self, "step", step)
        if not self.file_sizes:
            thing = "Shard of a source without files got rule="
            why = "That divides by record."
            check_known(thing, self.shard.rule, ["records"], why, ValueError)
        else:
            # Raises where there are fewer files than processes: now, not in the first epoch.
            self.file_ranges(self.shard)
            self.shard.warn_if_uneven(len(self.file_names))

    @property
    def total(self) -> int:
        """Return the position at which an epoch ends, the same on every shard."""
        return self._find_end(0)

    def _find_end(self, first: int) -> int:
        if self.shard.rule == "records":
            total = self.num_records
        else:
            shares = [
                self._count_own(Shard(i, self.shard.count, self.shard.rule))
                for i in range(self.shard.count)
            ]
            # Every process takes the steps of the longest share, and has empty batches where its
            # own is over; without remainders all end with the shortest.
            total = self.shard.count * (min(shares) if self.drop_remainder else max(shares))
        return total - (total - first) % self.step if self.drop_remainder else total

    def __len__(self) -> int:
        if self.batch_size is None:
            if self.shard.rule != "records":
                return min(self._count_own(self.shard), self.total // self.shard.count)
            return len(range(self.shard.index, self.total, self.shard.count))
        return len(range(0, self.total, self.step))

    @property
    def last_batch_size(self) -> int | None:
        if self.batch_size is None or self.shard.count > 1:
            return None
        return self.total % self.step or self.step

    def file_ranges(self, shard: Shard) -> list[range]:
        ends = np.cumsum(self.file_sizes)
        chosen = shard.select_indices(self.file_names)
        return [range(int(ends[i]) - self.file_sizes[i], int(ends[i])) for i in chosen]

    def _count_own(self, shard: Shard) -> int:
        return sum(map(len, self.file_ranges(shard)))

    def epoch(self, epoch: int, first: int = 0) -> EpochOrder:
        """Return the order of an epoch whose next batch begins at position `first`.

        Batches of another size may have been read before it.
        """
        if self.shard.rule == "records":
            # One key for all shards: each draws the whole order and takes its part of every batch.
            own, num_own, key = self.chosen, self.num_records, [self.seed, epoch]
        else:
            own = np.concatenate([np.arange(r.start, r.stop) for r in self.file_ranges(self.shard)])
            num_own, key = len(own), [self.seed, epoch, self.shard.index]
        if self.shuffle:
            # The bit generator is named: numpy may give `default_rng` another one in a release.
            shuffled = np.random.Generator(np.random.PCG64(key)).permutation(num_own)
            own = shuffled if own is None else own[shuffled]
        return EpochOrder(self, own, self._find_end(first))

    def check_position(self, state: Mapping[str, Any], reader: str) -> int:
        """Return the position in `state`, checked against this order."""
        meaning = self._meaning
        got = {key: state[key] for key in _MEANING if key in state}
        check_state(
            reader,
            got,
            meaning,
            "A position counts the same records in the same order; by file each process counts its "
            "own, and only states of rule='records' move between numbers of processes",
        )
        return state["position"]

    @property
    def _meaning(self) -> State:
        """Return what has to be the same for a position to be that of the same sample."""
        meaning: State = {
            "num_records": self.num_records,
            "seed": int(self.seed),  # which JSON holds, and not numpy's
            "shuffle": self.shuffle,
            "rule": self.shard.rule,
        }
        if self.chosen is not None:
            meaning["part"] = f"part {zlib.crc32(self.chosen.astype('<i8').tobytes()):08x}"
        if self.shard.rule != "records":
            meaning["count"] = self.shard.count
        return meaning

    def save_position(self, position: int) -> State:
        return {"position": position, **self._meaning}


class EpochOrder:
    """The rows of each batch of one epoch. `rows(position)` is this shard's part."""

    def __init__(self, order: RecordOrder, own: np.ndarray | None, total: int) -> None:
        # `own` holds shuffled or chosen indices, or those of this shard's files; `None` is the
        # plain order.
        self.total = total
        self.step = order.step
        self._own = own
        self._shard = order.shard
        self._by_record = order.shard.rule == "records"

    def rows(self, position: int) -> RowIndices:
        """Return the records of the batch at `position`: a slice, or `[b]` indices.

        On several shards the last batch may be empty here: every process takes the same
        number of steps.
        """
        stop = position + self.step
        # Not by `min`, which costs more than this check of a full batch.
        if stop > self.total:
            stop = self.total
        count = self._shard.count
        if self._by_record:
            if count > 1:
                position, stop = self._shard.rows(position, stop)
        else:
            # A position counts the records of all shards, `own` those of this one.
            position, stop = position // count, stop // count
        own = self._own
        # A slice where nothing is shuffled: numpy gives a view, where indices would copy.
        return slice(position, stop) if own is None else own[position:stop]


def describe_rows(word: str, rows: RowIndices | list[int]) -> str:
    """Return which rows or records they are, for a message.

    >>> describe_rows("row", slice(2, 5)), describe_rows("record", [4, 1]), describe_rows("row", [])
    ('rows 2 to 4', 'records 4, 1', 'no row')
    """
    numbers = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else list(rows)
    if not numbers:
        return f"no {word}"
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    rest = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"{word}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:8]))}{rest}"

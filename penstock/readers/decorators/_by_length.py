"""`batch_by_length`: batches of samples of about one length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.readers._contract import Item, ReaderBase, ReaderLike, State, reader_length
from penstock.readers._errors import ReaderStateError, ShardError, note
from penstock.readers._foreign import ForeignReader, of
from penstock.readers._measure import Field, choose_measure
from penstock.readers.decorators._decorated import DecoratedIterator, DecoratedReader, origin
from penstock.readers.decorators._length_plan import LengthPlan
from penstock.readers.sharding import BatchSize, Shard, find_own_shard, resolve_batch_size


class _ByLengthIterator(DecoratedIterator[Item, list[Item]]):
    kind = "batch_by_length"

    def __init__(
        self,
        source: ReaderBase[Item],
        epoch: int,
        plan: LengthPlan,
        measure: Callable[[Item], int],
        shard: Shard | None,
    ) -> None:
        super().__init__([source], epoch)
        self._plan = plan
        self._measure = measure
        self._shard = shard
        # The current pool: its number, with the seed and the epoch the key of its order; where the
        # source stood before it, and how many samples were read by then.
        self._pool = -1
        self._start: State = self._inner[0].get_state()
        self._num_before = self._num_read = 0
        # Drained from the end, where a list gives up items at no cost.
        self._batches: list[list[Item]] = []
        self._num_returned = 0

    def __next__(self) -> list[Item]:
        # A pool may have no batch, where its only one is short and left out.
        while not self._batches:
            if self._closed or not self._fill():
                raise StopIteration
        if self._closed:
            raise StopIteration
        self._num_returned += 1
        samples = self._batches.pop()
        return (
            samples if self._shard is None else samples[slice(*self._shard.rows(0, len(samples)))]
        )

    def _fill(self) -> bool:
        """Read a pool and cut its batches; return False where the source is over."""
        source = self._inner[0]
        self._start, self._num_before = source.get_state(), self._num_read
        samples, padded, num_words = [], [], 0
        for sample in source:
            samples.append(sample)
            padded.append(self._find_padded_length(sample))
            self._num_read += 1
            num_words += padded[-1]
            if self._plan.is_full(len(samples), num_words):
                break
        if not samples:
            return False
        self._pool += 1
        batches = self._plan.cut(np.asarray(padded), [self.epoch, self._pool])
        self._batches = [[samples[i] for i in batch] for batch in reversed(batches)]
        self._num_returned = 0
        return True

    def _find_padded_length(self, sample: Item) -> int:
        try:
            return self._plan.find_padded_length(self._measure(sample), self._num_read)
        except Exception as error:
            note(error, origin("batch_by_length", self._num_read, self.epoch))
            raise

    def _save(self) -> State:
        plan = self._plan.save()
        # Between two pools nothing has to be read again.
        if not self._batches:
            return {
                "plan": plan,
                "source": self._inner[0].get_state(),
                "num_read": self._num_read,
                "pool": self._pool + 1,
                "num_returned": 0,
            }
        return {
            "plan": plan,
            "source": self._start,
            "num_read": self._num_before,
            "pool": self._pool,
            "num_returned": self._num_returned,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        plan = self._plan.save()
        if state.get("plan") != plan:
            raise ReaderStateError(
                f"batch_by_length.set_state() got a state of {state.get('plan')}, expected {plan}. "
                "Other options make other batches of the same samples. Give batch_by_length the "
                "options of the run that was saved."
            )
        self._inner[0].set_state(state["source"])
        self._num_read = state["num_read"]
        self._pool = state["pool"] - 1
        self._batches = []
        # In the middle of a pool: it is read again, and what was returned of it is dropped.
        if state["num_returned"]:
            self._fill()
            del self._batches[-state["num_returned"] :]
            self._num_returned = state["num_returned"]


def batch_by_length(
    reader: ReaderLike[Item],
    *,
    field: Field | Sequence[Field] | None = None,
    length: Callable[[Item], int] | None = None,
    batch_size: BatchSize | None = None,
    words_per_batch: int | None = None,
    batch_multiple_of: int = 1,
    boundaries: Sequence[int] = (),
    pool_batches: int = 100,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    shard: Shard | None = None,
) -> DecoratedReader[list[Item]]:
    """Collect samples of similar length into lists, to keep padding small.

    Sorts a pool of samples by length, cuts it into batches, and yields these in an order drawn from
    `(seed, epoch, pool)`. Batches are lists, divided over processes as those of `batch`. Only the
    last batch of a pool may be short; it has the shortest samples. Restoring rereads one pool.
    Follows torchtext's `BucketIterator`, with fairseq's `--max-tokens` as the budget.

    Args:
      reader: a reader of samples.
      field: the key or index of the sequence in a sample; of several, the longest counts. By
        default the sample itself is the sequence.
      length: instead of `field`, a function of a sample that returns its length.
      batch_size: samples per list, over all processes, or `PerDevice(...)`.
      words_per_batch: the word budget: an upper bound on the number of samples times their padded
        length. With both, the smaller batch counts.
      batch_multiple_of: with a word budget, round the number of samples down to a multiple of
        this, e.g. of the number of devices.
      boundaries: the buckets of `layers.data`; lengths are then rounded up to them.
      pool_batches: batches per pool. A larger pool pads less, and takes more memory.
      shuffle: shuffle samples and batches; otherwise each pool runs from longest to shortest.
      seed: seeds the shuffling.
      drop_last: drop short batches: at most one per epoch, or one per pool with a word budget.
      shard: this process's part of each batch; `Shard()` is all. Foreign samples need it.

    Raises:
      ValueError: an option out of range, or a sample longer than the last boundary or the budget.
      ShardError: batches cannot be divided equally over the processes, or nothing says how.

    >>> samples = [[1, 1, 1], [2], [3, 3, 3, 3], [4, 4], [5]]
    >>> list(batch_by_length(samples, batch_size=2, shuffle=False))
    [[[3, 3, 3, 3], [1, 1, 1]], [[4, 4], [2]], [[5]]]
    """
    shard = _find_shard(source := of(reader), shard)
    plan = LengthPlan(
        batch_size=None if batch_size is None else resolve_batch_size(batch_size, shard),
        words_per_batch=words_per_batch,
        batch_multiple_of=batch_multiple_of,
        boundaries=tuple(boundaries),
        pool_batches=pool_batches,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )
    plan.check_division(shard)
    return _make_reader(source, plan, choose_measure("batch_by_length", field, length), shard)


def _find_shard(source: ReaderBase[Item], shard: Shard | None) -> Shard | None:
    """Return the part of each batch that this process keeps, as `batch` does."""
    own = find_own_shard() if shard is None else Shard()
    if own.count > 1 and _is_of_others(source):
        raise ShardError(
            f"batch_by_length got samples of {source!r} without shard, expected shard, on "
            f"{own.count} processes. Of a reader that is not penstock's it cannot know whether "
            "each process reads all samples, which would train on every one several times. Pass "
            f"shard={own!r} where each process reads all samples, shard=Shard() where each reads a "
            "part of its own."
        )
    return own if own.count > 1 and source.is_common else shard


def _is_of_others(source: object) -> bool:
    if isinstance(source, DecoratedReader):
        return any(map(_is_of_others, source.sources))
    return isinstance(source, ForeignReader)


def _make_reader(
    source: ReaderBase[Item],
    plan: LengthPlan,
    measure: Callable[[Item], int],
    shard: Shard | None,
) -> DecoratedReader[list[Item]]:
    def count() -> int | None:
        num_samples, size = reader_length(source), plan.batch_size
        # A budget makes as many batches as the lengths say, and they have not been read.
        if num_samples is None or size is None or plan.words_per_batch is not None:
            return None
        return num_samples // size if plan.drop_last else -(-num_samples // size)

    batches = DecoratedReader(
        "batch_by_length",
        lambda epoch: _ByLengthIterator(source, epoch, plan, measure, shard),
        count,
        [source],
    )
    batches.is_common = False
    return batches

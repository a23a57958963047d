"""`batch` and `shuffle`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from penstock.readers._contract import Item, ReaderBase, ReaderLike, State, reader_length
from penstock.readers._errors import check_int
from penstock.readers._foreign import of
from penstock.readers.decorators._decorated import DecoratedIterator, DecoratedReader
from penstock.readers.sharding import BatchSize, Shard, find_own_shard, resolve_batch_size


class _BatchIterator(DecoratedIterator[Item, list[Item]]):
    kind = "batch"

    def __init__(
        self,
        source: ReaderBase[Item],
        epoch: int,
        size: int,
        drop_last: bool,
        shard: Shard | None,
    ) -> None:
        super().__init__([source], epoch)
        self._size = size
        self._drop_last = drop_last
        self._shard = shard

    def __next__(self) -> list[Item]:
        source = self._inner[0]
        # A shard reads the whole batch, as all processes read the same samples.
        samples = list(islice(source, self._size))
        if not samples or self._closed or (self._drop_last and len(samples) < self._size):
            raise StopIteration
        self.position += 1
        return (
            samples if self._shard is None else samples[slice(*self._shard.rows(0, len(samples)))]
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

    def length() -> int | None:
        num_samples = reader_length(source)
        if num_samples is None:
            return None
        return num_samples // size if drop_last else -(-num_samples // size)

    batches = _Batches(
        "batch",
        lambda epoch: _BatchIterator(source, epoch, size, drop_last, shard),
        length,
        [source],
    )
    batches.is_common = False
    if not drop_last and shard is None:
        batches.size = size
    return batches


class _ShuffleIterator(DecoratedIterator[Item, Item]):
    kind = "shuffle"

    def __init__(self, source: ReaderBase[Item], epoch: int, buf_size: int, seed: int) -> None:
        super().__init__([source], epoch)
        self._buf_size = max(buf_size, 1)
        self._seed = seed
        # With the seed and the epoch the key of a buffer's order.
        self._num_fills = 0
        # Where the current buffer began: a restored pass reads it again.
        self._start = self._inner[0].get_state()
        # Drained from the end, where a list gives up items at no cost.
        self._buffer: list[Item] = []
        self._num_drained = 0

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        if not self._buffer:
            self._start = self._inner[0].get_state()
            self._fill()
            if not self._buffer:
                raise StopIteration
        self._num_drained += 1
        return self._buffer.pop()

    def _fill(self) -> None:
        source = self._inner[0]
        samples = list(islice(source, self._buf_size))
        # The bit generator is named: numpy may give `default_rng` another one in a release.
        generator = np.random.Generator(np.random.PCG64([self._seed, self.epoch, self._num_fills]))
        if self._buf_size > 1:
            samples = [samples[i] for i in generator.permutation(len(samples))]
        self._buffer = samples[::-1]
        self._num_fills += 1
        self._num_drained = 0

    def _save(self) -> State:
        # Between two buffers nothing has to be read again.
        if not self._buffer:
            return {
                "source": self._inner[0].get_state(),
                "fill": self._num_fills,
                "drained": 0,
            }
        return {
            "source": self._start,
            "fill": self._num_fills - 1,
            "drained": self._num_drained,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self._inner[0].set_state(state["source"])
        self._num_fills = state["fill"]
        self._buffer = []
        # In the middle of a buffer: it is filled again, and what was returned of it is dropped.
        if state["drained"]:
            self._start = state["source"]
            self._fill()
            del self._buffer[-state["drained"] :]
            self._num_drained = state["drained"]


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
    check_int("shuffle(buf_size)", buf_size, 0, "It counts the samples in the buffer")
    check_int("shuffle(seed)", seed, 0, "It seeds a numpy generator")
    return DecoratedReader(
        "shuffle",
        lambda epoch: _ShuffleIterator(source, epoch, buf_size, seed),
        lambda: reader_length(source),
        [source],
    )

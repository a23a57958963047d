"""Which samples of a pool make a batch, by their lengths."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.readers._contract import State
from penstock.readers._errors import ShardError, check_int
from penstock.readers.sharding import Shard


@dataclass(frozen=True, kw_only=True)
class LengthPlan:
    """What decides which samples make a batch, beside the samples; a state must agree with it.

    The arguments are those of `batch_by_length`.

    Raises:
      ValueError: one is out of range, or the budget holds no batch of the longest boundary.
    """

    batch_size: int | None = None
    words_per_batch: int | None = None
    batch_multiple_of: int = 1
    boundaries: tuple[int, ...] = ()
    pool_batches: int = 100
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_int("batch_multiple_of", self.batch_multiple_of, 1, "It counts samples")
        check_int("pool_batches", self.pool_batches, 1, "A pool is cut into batches")
        check_int("batch_by_length(seed)", self.seed, 0, "It seeds a numpy generator")
        self._check_boundaries()
        words, size, multiple = self.words_per_batch, self.batch_size, self.batch_multiple_of
        if words is None and (size is None or multiple > 1):
            raise ValueError(
                f"batch_by_length got batch_size={size}, words_per_batch=None, "
                f"batch_multiple_of={multiple}, expected batch_size, or words_per_batch with the "
                "multiple. One of them says where a batch ends. Pass batch_size=64, "
                "words_per_batch=4096, or both."
            )
        if words is None:
            return
        check_int("words_per_batch", words, 1, "It counts the words of a batch")
        if size is not None and size < multiple:
            raise ValueError(
                f"batch_by_length got batch_size={size} and batch_multiple_of={multiple}, expected "
                f"a batch_size of at least {multiple}. A batch has a multiple of so many samples. "
                "Raise one or lower the other."
            )
        longest = self.boundaries[-1] if self.boundaries else 1
        if not self.find_batch_size(longest):
            raise ValueError(
                f"words_per_batch got {words}, expected at least {multiple * longest}. It is to "
                f"hold {multiple} samples padded to {longest}. Raise it, or lower "
                "batch_multiple_of or the last boundary."
            )

    def _check_boundaries(self) -> None:
        lengths = self.boundaries
        if all(
            isinstance(b, (int, np.integer)) and b > a
            for a, b in zip((0, *lengths), lengths, strict=False)
        ):
            # Plain ints, which JSON holds.
            object.__setattr__(self, "boundaries", tuple(map(int, lengths)))
            return
        raise ValueError(
            f"batch_by_length(boundaries) got {list(lengths)}, expected rising positive lengths "
            "such as [16, 32, 64]. Sequences are padded to them. Pass the buckets of layers.data, "
            "or leave them out."
        )

    def check_division(self, shard: Shard | None) -> None:
        """Check that batches of a budget divide equally over the processes.

        Raises:
          ShardError: they do not.
        """
        count, multiple = 1 if shard is None else shard.count, self.batch_multiple_of
        if self.words_per_batch is not None and multiple % count:
            raise ShardError(
                f"batch_by_length got batch_multiple_of={multiple} over {count} processes, "
                f"expected a multiple of {count}. Every process reads an equal part of each batch. "
                f"Pass {multiple + -multiple % count}, on any number of processes, to have the "
                "same batches on all."
            )

    def is_full(self, num_samples: int, num_words: int) -> bool:
        """Return whether a pool of so many samples and padded words is full."""
        size, words = self.batch_size, self.words_per_batch
        return (size is not None and num_samples >= self.pool_batches * size) or (
            words is not None and num_words >= self.pool_batches * words
        )

    def find_padded_length(self, length: int, number: int) -> int:
        """Return the length that a sample is padded to where it is the longest of its batch.

        Raises:
          ValueError: no boundary is as long, or the budget holds no batch of such samples.
        """
        if not self.boundaries:
            # An empty sequence takes a place too.
            padded = max(length, 1)
        elif length <= self.boundaries[-1]:
            return self.boundaries[bisect.bisect_left(self.boundaries, length)]
        else:
            why, remedy = "Nothing is cut off in silence", "Add a longer boundary"
            raise _too_long(
                length, number, f"{self.boundaries[-1]}, the last boundary", why, remedy
            )
        if not self.find_batch_size(padded):
            longest = (self.words_per_batch or 0) // self.batch_multiple_of
            why = (
                f"A batch has {self.batch_multiple_of} samples or more, and "
                f"{self.words_per_batch} words at most"
            )
            raise _too_long(length, number, str(longest), why, "Raise words_per_batch")
        return padded

    def find_batch_size(self, padded: int) -> int:
        """Return how many samples make a batch that is padded to a length.

        >>> LengthPlan(words_per_batch=100, batch_multiple_of=4).find_batch_size(9)
        8
        """
        if self.words_per_batch is None:
            return self.batch_size or 0
        fits = self.words_per_batch // padded
        if self.batch_size is not None:
            fits = min(fits, self.batch_size)
        return fits - fits % self.batch_multiple_of

    def cut(self, padded: np.ndarray, key: Sequence[int]) -> list[np.ndarray]:
        """Return the batches of a pool, each as the places of its samples in the pool.

        Args:
          padded: `[N]`, the length that each sample would be padded to.
          key: decides the order, with what the plan says.

        >>> plan = LengthPlan(batch_size=2, shuffle=False)
        >>> [batch.tolist() for batch in plan.cut(np.array([3, 1, 4, 2, 1]), [])]
        [[2, 0], [3, 1], [4]]
        """
        # The bit generator is named: numpy may give `default_rng` another one in a release.
        generator = np.random.Generator(np.random.PCG64([self.seed, *key]))
        order = np.arange(len(padded))
        # Before sorting: samples of one length meet others in every epoch.
        order = generator.permutation(order) if self.shuffle else order
        order = order[np.argsort(-padded[order], kind="stable")]
        batches, start = [], 0
        # From the longest down: the first sample of a batch says how many it has.
        while start < len(order):
            size = self.find_batch_size(int(padded[order[start]]))
            batches.append(order[start : start + size])
            start += size
        # It stays the last: processes that train together learn the batch size from the first.
        short = [batches.pop()] if start > len(order) else []
        if self.shuffle:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches if self.drop_last else batches + short

    def save(self) -> State:
        """Return the plan as JSON holds it."""
        return {**vars(self), "boundaries": list(self.boundaries)}


def _too_long(length: int, number: int, longest: str, why: str, remedy: str) -> ValueError:
    return ValueError(
        f"batch_by_length got sample {number} of length {length}, expected at most {longest}. "
        f"{why}. {remedy}, or cut or leave out long samples before."
    )

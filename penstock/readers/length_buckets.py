"""`learn_buckets`: the few lengths to pad sequences to that pad least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.readers._contract import ReaderLike
from penstock.readers._errors import check_int, note
from penstock.readers._foreign import of
from penstock.readers.decorators._by_length import Field, choose_measure


def learn_buckets(
    reader: ReaderLike[Any],
    *,
    field: Field | Sequence[Field] | None = None,
    length: Callable[[Any], int] | None = None,
    max_buckets: int = 8,
    multiple_of: int = 8,
) -> list[int]:
    """Return the lengths that sequences are best padded to, for `layers.data(..., buckets=)`.

    Reads one pass, epoch 0. Each sample will be padded to the smallest bucket that holds it. The
    result minimises the total number of padded words over all choices of at most `max_buckets`
    multiples of `multiple_of`. It is exact: dynamic programming over the `D` distinct rounded
    lengths, in O(max_buckets D^2) time and O(max_buckets D) memory.

    The last bucket is the longest length of the pass, rounded up. Nothing longer may be fed later:
    if there is a test set, pass `chain(train, test)`. A subset such as `firstn(reader, 10000)` is
    enough if it contains the longest sample. All processes must use the same buckets: let each of
    them read the same samples.

    Args:
      reader: a reader of samples, or of lengths: an array `[N]` or any iterable of ints.
      field: the key or index of the sequence in a sample; of several, the longest counts. By
        default the sample is the sequence itself, or its length.
      length: instead of `field`, a function of a sample that returns its length.
      max_buckets: an upper bound on the number of buckets. Each is one compiled program.
      multiple_of: buckets are multiples of this.

    Returns:
      At most `max_buckets` lengths in ascending order.

    Raises:
      ValueError: there are no samples, an option is below 1, or a sample has no such field.

    >>> learn_buckets([3, 4, 5, 5, 30, 31], max_buckets=2)
    [8, 32]
    >>> learn_buckets([{"words": [1] * n} for n in (1, 2, 3, 9)], field="words", multiple_of=1)
    [1, 2, 3, 9]
    """
    check_int("max_buckets", max_buckets, 1, "Each is a length to pad to")
    check_int("multiple_of", multiple_of, 1, "Lengths are rounded up to it")
    counts = _count_lengths(reader, field, length, multiple_of)
    if not counts:
        raise ValueError(
            "learn_buckets got no sample, expected a sample or more. Boundaries are learned from "
            "lengths. Pass a reader that is not empty."
        )
    boundaries = sorted(counts)
    return choose_buckets(boundaries, [counts[each] for each in boundaries], max_buckets)


def choose_buckets(
    lengths: Sequence[int], num_samples: Sequence[int], max_buckets: int
) -> list[int]:
    """Return which of the lengths to pad to, so that the padded samples have the fewest words.

    Args:
      lengths: `[D]`, rising.
      num_samples: `[D]`, how many samples are of each length.
      max_buckets: at most so many are returned, the last length among them.

    >>> choose_buckets([1, 2, 10], [5, 5, 1], 2)
    [2, 10]
    """
    ends = np.asarray(lengths, np.int64)
    before = np.concatenate([[0], np.cumsum(np.asarray(num_samples, np.int64))])
    size = len(ends)
    # With one bucket, the first `j + 1` lengths are padded to length `j`.
    words = ends * before[1:]
    chosen_from = []
    for _ in range(1, min(max_buckets, size)):
        previous, words = words, words.copy()
        starts = np.full(size, -1)
        for j in range(1, size):
            # The bucket before this one ends with length i, for every i < j.
            totals = previous[:j] + ends[j] * (before[j + 1] - before[1 : j + 1])
            i = int(totals.argmin())
            if totals[i] < words[j]:
                words[j], starts[j] = totals[i], i
        chosen_from.append(starts)
    buckets, j = [int(ends[-1])], size - 1
    for starts in reversed(chosen_from):
        # -1: one more bucket pads no less.
        if starts[j] >= 0:
            j = int(starts[j])
            buckets.append(int(ends[j]))
    return buckets[::-1]


def _count_lengths(
    reader: ReaderLike[Any],
    field: Field | Sequence[Field] | None,
    length: Callable[[Any], int] | None,
    multiple_of: int,
) -> dict[int, int]:
    """Return how many samples are of each length, rounded up."""
    measure = choose_measure("learn_buckets", field, length)
    is_plain = field is None and length is None
    counts: dict[int, int] = {}
    # Not by `iter`: the reader's next pass stays the one it was.
    with of(reader).iterate(0) as samples:
        for number, sample in enumerate(samples):
            try:
                is_length = is_plain and isinstance(sample, (int, np.integer))
                words = _check(int(sample)) if is_length else measure(sample)
            except Exception as error:
                note(error, f"in learn_buckets, sample {number} of epoch 0")
                raise
            # An empty sequence is padded to the least length, which is no 0.
            rounded = -(-max(words, 1) // multiple_of) * multiple_of
            counts[rounded] = counts.get(rounded, 0) + 1
    return counts


def _check(length: int) -> int:
    return check_int("learn_buckets: a length", length, 0, "It counts words")

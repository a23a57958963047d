"""Fluid's tensors of sequences, made on the host for `infer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from penstock._program import sequences

Lengths: TypeAlias = list[np.ndarray]
"""Of each level, the outer one first."""


def create_lod_tensor(
    data: Sequence[Any] | np.ndarray | sequences.Sequence | sequences.NestedSequence,
    recursive_seq_lens: Sequence[Sequence[int]],
    place: object = None,
) -> sequences.Sequence | sequences.NestedSequence:
    """Return sequences of the given lengths, or sequences of sequences, to feed.

    Feed sequences to an input with `lod_level=1`, or to a dense input if all lengths are 1. Feed
    sequences of sequences to an input with `lod_level=2`.

    Arguments:
      data: a list of sequences, or for two levels a list of lists of sequences; or an array of the
        words of all sequences, concatenated, `[sum of lengths, ...]`; or an earlier result of this
        function, which is split again by the new lengths.
      recursive_seq_lens: one list per level. The last one holds the length of each sequence; for
        two levels, the first holds the number of sequences of each example.
      place: has no effect.

    Returns:
      A `ps.Sequence` with numpy values `[B, T, ...]`, `[B, T, 1]` from lists of numbers; for two
      levels a `ps.NestedSequence` with values `[B, K, T, ...]`.

    Raises:
      ValueError: the lengths do not match the data, or there are more than two levels.

    >>> words = create_lod_tensor([[3, 4, 5], [6]], [[3, 1]])
    >>> words.values.tolist(), words.lengths.tolist()
    ([[[3], [4], [5]], [[6], [0], [0]]], [3, 1])
    >>> text = create_lod_tensor(np.arange(4), [[1, 2], [1, 2, 1]])
    >>> [[each.tolist() for each in example] for example in text.cut()]
    [[[0]], [[1, 2], [3]]]
    """
    levels = _check_lengths("create_lod_tensor", recursive_seq_lens)
    words = _join(data, levels)
    if len(words) != levels[-1].sum():
        raise ValueError(
            f"fluid.create_lod_tensor got {len(words)} elements in data, expected "
            f"{levels[-1].sum()}, the sum of recursive_seq_lens. Each element belongs to a "
            "sequence. Give the length of each sequence."
        )
    return _pad(words, levels)


def _join(data: Any, levels: Lengths) -> np.ndarray:
    """Return the words of all sequences end to end, `[sum of lengths, ...]`."""
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, sequences.NestedSequence):
        data = [sequence for example in data.cut() for sequence in example]
    elif isinstance(data, sequences.Sequence):
        data = data.cut()
    else:
        if len(levels) == 2:
            _check_data_lengths([len(example) for example in data], levels[0])
            data = [sequence for example in data for sequence in example]
        _check_data_lengths([len(sequence) for sequence in data], levels[-1])
    rows: list[Any] = [np.asarray(sequence) for sequence in data if len(sequence)]
    words = np.concatenate(rows) if rows else np.zeros([0], np.int64)
    # Numbers become rows of one, the shape that Fluid's tensors of ids have.
    return words[:, np.newaxis] if words.ndim == 1 else words


def _check_data_lengths(actual: list[int], lengths: np.ndarray) -> None:
    if actual != lengths.tolist():
        raise ValueError(
            f"fluid.create_lod_tensor got sequences of lengths {actual}, expected "
            f"recursive_seq_lens, {lengths.tolist()}. They say where each ends. Give one for each."
        )


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: object,
    low: int,
    high: int,
) -> sequences.Sequence | sequences.NestedSequence:
    """Return sequences of random ids from `low` to `high`, both included, to feed.

    Arguments:
      recursive_seq_lens: as for `create_lod_tensor`.
      base_shape: the shape of one word.
      place: has no effect.
      low: the smallest id.
      high: the largest id.

    Returns:
      A `ps.Sequence` with numpy values `[B, T, *base_shape]`, int64; for two levels a
      `ps.NestedSequence` with values `[B, K, T, *base_shape]`.

    Raises:
      ValueError: there are no lengths, or more than two levels.

    >>> ids = create_random_int_lodtensor([[3, 1]], base_shape=[1], place=None, low=0, high=9)
    >>> ids.values.shape, ids.lengths.tolist()
    ((2, 3, 1), [3, 1])
    """
    levels = _check_lengths("create_random_int_lodtensor", recursive_seq_lens)
    shape = [int(levels[-1].sum()), *base_shape]
    return _pad(np.random.default_rng().integers(low, high, shape, np.int64, True), levels)


def _check_lengths(function: str, recursive_seq_lens: Sequence[Sequence[int]]) -> Lengths:
    """Return the lengths of one level or two, each int32: `[B]`, or `[B]` and their sum."""
    levels = [np.asarray(level) for level in recursive_seq_lens]
    are_lengths = len(levels) in (1, 2) and all(
        level.ndim == 1 and level.size and level.dtype.kind in "iu" and level.min() >= 0
        for level in levels
    )
    if not are_lengths or (len(levels) == 2 and levels[0].sum() != levels[1].size):
        raise ValueError(
            f"fluid.{function} got recursive_seq_lens={recursive_seq_lens!r}, expected one list of "
            "lengths in a list, such as [[3, 1]], or two, such as [[1, 2], [3, 1, 4]]. The last "
            "has a length for each sequence, a first one how many of them each example has. Put "
            "the lengths in such lists."
        )
    return [level.astype(np.int32) for level in levels]


def _pad(words: np.ndarray, levels: Lengths) -> sequences.Sequence | sequences.NestedSequence:
    """Return words end to end, `[sum of lengths, ...]`, as sequences padded with zeros."""
    lengths = levels[-1]
    values = np.zeros([len(lengths), lengths.max(initial=0), *words.shape[1:]], words.dtype)
    values[np.arange(values.shape[1]) < lengths[:, None]] = words
    if len(levels) == 1:
        return sequences.Sequence(values, lengths)  # pyright: ignore[reportArgumentType]
    counts = levels[0]
    is_there = np.arange(counts.max()) < counts[:, None]
    nested = np.zeros([*is_there.shape, *values.shape[1:]], values.dtype)
    inner = np.zeros(is_there.shape, np.int32)
    nested[is_there], inner[is_there] = values, lengths
    return sequences.NestedSequence(nested, inner, counts)  # pyright: ignore[reportArgumentType]

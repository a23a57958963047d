"""Fluid's tensors of sequences, made on the host for `infer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock._program import sequences


def create_lod_tensor(
    data: Sequence[Sequence[object]] | np.ndarray | sequences.Sequence,
    recursive_seq_lens: Sequence[Sequence[int]],
    place: object = None,
) -> sequences.Sequence:
    """Return sequences of the given lengths, to feed.

    An input with `lod_level=1` takes them; a dense one too where all lengths are 1.

    Arguments:
      data: a list of sequences; the words of all sequences end to end, `[sum of lengths, ...]`; or
        sequences, which are cut anew.
      recursive_seq_lens: the length of each sequence, in a list.
      place: changes nothing.

    Returns:
      Values `[B, T, ...]` in numpy arrays, `[B, T, 1]` from lists of numbers.

    Raises:
      NotImplementedError: there are lengths of several levels.
      ValueError: the lengths are not those of the data.

    >>> words = create_lod_tensor([[3, 4, 5], [6]], [[3, 1]])
    >>> words.values.tolist(), words.lengths.tolist()
    ([[[3], [4], [5]], [[6], [0], [0]]], [3, 1])
    """
    lengths = _check_lengths("create_lod_tensor", recursive_seq_lens)
    if isinstance(data, sequences.Sequence):
        data = np.concatenate(data.cut())
    if isinstance(data, np.ndarray):
        words = data
    else:
        found = [len(each) for each in data]
        if found != lengths.tolist():
            raise ValueError(
                f"fluid.create_lod_tensor got sequences of lengths {found}, expected "
                f"recursive_seq_lens, {lengths.tolist()}. They say where a sequence ends. Give one "
                "length for each sequence."
            )
        rows: list[Any] = [np.asarray(each) for each in data if len(each)]
        words = np.concatenate(rows) if rows else np.zeros([0], np.int64)
        # Numbers become rows of one, the shape that Fluid's tensors of ids have.
        words = words[:, np.newaxis] if words.ndim == 1 else words
    if len(words) != lengths.sum():
        raise ValueError(
            f"fluid.create_lod_tensor got {len(words)} elements in data, expected {lengths.sum()}, "
            "the sum of recursive_seq_lens. Each element belongs to a sequence. Give the length of "
            "each sequence."
        )
    return _pad(words, lengths)


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: object,
    low: int,
    high: int,
) -> sequences.Sequence:
    """Return sequences of random ids from `low` to `high`, both included, to feed.

    Arguments:
      recursive_seq_lens: the length of each sequence, in a list.
      base_shape: the shape of one word.
      place: changes nothing.

    Returns:
      Values `[B, T, *base_shape]`, int64, in numpy arrays.

    Raises:
      NotImplementedError: there are lengths of several levels.

    >>> ids = create_random_int_lodtensor([[3, 1]], base_shape=[1], place=None, low=0, high=9)
    >>> ids.values.shape, ids.lengths.tolist()
    ((2, 3, 1), [3, 1])
    """
    lengths = _check_lengths("create_random_int_lodtensor", recursive_seq_lens)
    shape = [int(lengths.sum()), *base_shape]
    return _pad(np.random.default_rng().integers(low, high, shape, np.int64, True), lengths)


def _check_lengths(function: str, levels: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the lengths of one level, `[B]`, int32."""
    if len(levels) > 1:
        raise NotImplementedError(
            f"fluid.{function} got recursive_seq_lens of {len(levels)} levels, expected one list "
            "of lengths. A tensor has one level. Feed penstock.layers.data(..., lod_level=2) with "
            "lists of lists of arrays."
        )
    lengths = np.asarray(levels[0] if len(levels) else levels)
    is_lengths = lengths.ndim == 1 and lengths.size and lengths.dtype.kind in "iu"
    if not is_lengths or lengths.min() < 0:
        raise ValueError(
            f"fluid.{function} got recursive_seq_lens={levels!r}, expected one list of lengths in "
            "a list, such as [[3, 1]]. There is a length for each sequence. Put the lengths in two "
            "lists."
        )
    return lengths.astype(np.int32)


def _pad(words: np.ndarray, lengths: np.ndarray) -> sequences.Sequence:
    """Return words end to end, `[sum of lengths, ...]`, as sequences padded with zeros."""
    values = np.zeros([len(lengths), lengths.max(), *words.shape[1:]], words.dtype)
    values[np.arange(values.shape[1]) < lengths[:, None]] = words
    return sequences.Sequence(values, lengths)  # pyright: ignore[reportArgumentType]

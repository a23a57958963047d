"""Fluid's tensors with levels of detail, as far as they stand for arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def create_lod_tensor(
    data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Any = None
) -> np.ndarray:
    """Return data as an array, for `infer`, where every sequence has one element.

    Arguments:
      data: a list of sequences, or an array `[N, ...]`.
      recursive_seq_lens: the length of each sequence, all 1, in a list.
      place: changes nothing.

    Returns:
      `[N, ...]`; `[N, 1]` from lists of numbers.

    Raises:
      NotImplementedError: a sequence has another length.

    >>> create_lod_tensor([[211], [6]], [[1, 1]]).tolist()
    [[211], [6]]
    """
    array = np.concatenate([np.asarray(each) for each in data]) if len(data) else np.asarray(data)
    if isinstance(data, np.ndarray):
        array = data
    elif array.ndim == 1:
        array = array[:, np.newaxis]
    _check(recursive_seq_lens)
    if len(array) != len(recursive_seq_lens[0]):
        raise ValueError(
            f"fluid.create_lod_tensor got {len(array)} elements in data, expected "
            f"{len(recursive_seq_lens[0])}, the sum of recursive_seq_lens."
        )
    return array


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: Any,
    low: int,
    high: int,
) -> np.ndarray:
    """Return random ids from `low` to `high`, both included, where every sequence has one element.

    Arguments:
      recursive_seq_lens: the length of each sequence, all 1, in a list.
      base_shape: the shape of one element.
      place: changes nothing.

    Returns:
      `[N, *base_shape]`, int64.

    Raises:
      NotImplementedError: a sequence has another length.

    >>> create_random_int_lodtensor([[1, 1]], base_shape=[1], place=None, low=0, high=9).shape
    (2, 1)
    """
    _check(recursive_seq_lens)
    shape = [len(recursive_seq_lens[0]), *base_shape]
    return np.random.default_rng().integers(low, high, shape, np.int64, endpoint=True)


def check_lod_level(name: str, lod_level: int) -> None:
    """Raise where an input is declared as sequences."""
    if lod_level:
        raise NotImplementedError(
            f"fluid.layers.data {name!r} got lod_level={lod_level}, expected 0. There are no "
            "sequences of several lengths. Pad them to one length, and feed the lengths as an "
            "input of their own."
        )


def _check(recursive_seq_lens: Sequence[Sequence[int]]) -> None:
    lengths = [list(level) for level in recursive_seq_lens]
    if len(lengths) != 1 or any(length != 1 for length in lengths[0]):
        raise NotImplementedError(
            f"a tensor got recursive_seq_lens={lengths}, expected one list of ones. There are no "
            "sequences of several lengths. Pad them to one length, and feed the lengths as an "
            "input of their own."
        )

"""`fluid.layers.data`, and tensors of sequences as far as every sequence has one element."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import DTypeLike

from penstock import layers
from penstock._errors import ProgramError

_NO_SEQUENCES = (
    "There are no sequences of several lengths. Pad them to one length, and feed the lengths as an "
    "input of their own."
)


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    lod_level: int = 0,
    stop_gradient: bool = True,
) -> jax.Array:
    """Declare an input and return the array fed under its name; see `penstock.layers.data`.

    Arguments:
      name: the name in feeds and in `feed_order`.
      shape: the shape of one example. A first size of -1 or None is the batch axis itself.
      append_batch_size: `False` says that the shape begins with the batch axis.
      dtype: as numpy names it; `int64` becomes `int32` unless JAX's x64 mode is on.
      lod_level: 0, as there are no sequences of several lengths.
      stop_gradient: changes nothing, as parameters alone have gradients.

    Returns:
      `[B, *shape]`, where `B` is this device's share of the batch.

    Raises:
      NotImplementedError: `lod_level` is not 0.

    >>> import penstock as ps, penstock.fluid as fluid
    >>> def program():
    ...     return fluid.layers.data(name="x", shape=[-1, 2], append_batch_size=False)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[1.0, 2.0]]
    """
    if not isinstance(append_batch_size, bool):
        raise TypeError(
            f"fluid.layers.data {name!r} got append_batch_size={append_batch_size!r}, expected "
            "True or False. Fluid's order is name, shape, append_batch_size, dtype. Pass dtype by "
            "its name."
        )
    if lod_level:
        raise NotImplementedError(
            f"fluid.layers.data {name!r} got lod_level={lod_level}, expected 0. {_NO_SEQUENCES}"
        )
    if isinstance(shape, list | tuple) and shape and shape[0] in (-1, None):
        shape = shape[1:]
    elif not append_batch_size:
        raise ProgramError(
            f"fluid.layers.data {name!r} got shape {shape!r} with append_batch_size=False, "
            "expected -1 as its first size. Every input has a batch axis in front. Leave "
            "append_batch_size out where the shape is that of one example."
        )
    # A size of None at another place is an error of layers.data.
    return layers.data(name, shape, dtype)  # pyright: ignore[reportArgumentType]


def create_lod_tensor(
    data: Sequence[Sequence[object]] | np.ndarray,
    recursive_seq_lens: Sequence[Sequence[int]],
    place: object = None,
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
    if isinstance(data, np.ndarray):
        array = data
    else:
        array = np.concatenate([np.asarray(each) for each in data]) if data else np.asarray(data)
        # Numbers become rows of one, the shape that Fluid's tensors of ids have.
        array = array[:, np.newaxis] if array.ndim == 1 else array
    _check_lengths(recursive_seq_lens)
    if len(array) != len(recursive_seq_lens[0]):
        raise ValueError(
            f"fluid.create_lod_tensor got {len(array)} elements in data, expected "
            f"{len(recursive_seq_lens[0])}, the sum of recursive_seq_lens."
        )
    return array


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: object,
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
    _check_lengths(recursive_seq_lens)
    shape = [len(recursive_seq_lens[0]), *base_shape]
    return np.random.default_rng().integers(low, high, shape, np.int64, endpoint=True)


def _check_lengths(recursive_seq_lens: Sequence[Sequence[int]]) -> None:
    lengths = [list(level) for level in recursive_seq_lens]
    if len(lengths) != 1 or any(length != 1 for length in lengths[0]):
        raise NotImplementedError(
            f"a tensor got recursive_seq_lens={lengths}, expected one list of ones. {_NO_SEQUENCES}"
        )

"""Samples to batches: stacking, with padding where a feature has another length each record."""

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.readers import _tree
from penstock.readers._errors import message

_MIN_PLACED_BYTES = 1 << 12  # below, a lookup costs more than the copy it saves
_MAX_POOLED = 16


def _num_references(arrays: list[np.ndarray], number: int) -> int:
    return sys.getrefcount(arrays[number])


def _references_of_free() -> int | None:
    """Return the count of an array that a list alone holds; `None` where it cannot be relied on.

    What counts as a reference is CPython's own affair and has changed: 3.14 borrows the references
    of local variables. So it is measured, by the very function that is asked later, and must rise
    by one with each way a batch can be held. Without a GIL the count of an object that another
    thread holds is an estimate.
    """
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or not has_gil:
        return None
    arrays = [np.empty((2, 2))]
    free = _num_references(arrays, 0)
    held: list[Any] = []
    for hold in (lambda: arrays[0], lambda: arrays[0][1, :1], lambda: arrays[0].data):
        held.append(hold())
        if _num_references(arrays, 0) != free + len(held):
            return None
    local = arrays[0]
    is_seen = _num_references(arrays, 0) == free + len(held) + 1
    del local
    held.clear()
    return free if is_seen and _num_references(arrays, 0) == free else None


_REFERENCES_OF_FREE = _references_of_free()


class BufferPool:
    """Arrays of batches that nobody holds any more, to be filled again.

    A fresh batch of 64 images of 224x224 costs 5 ms of page faults, a tenth of decoding it on two
    cores. An array is used again only when the pool holds the last reference to it: views, JAX
    arrays that share its memory and transfers under way each hold one. A Python whose reference
    counts do not say so (see `_references_of_free`) gets a fresh array each time.

    >>> pool = BufferPool()
    >>> first = pool.take((4,), np.dtype("int32"))
    >>> pool.take((4,), np.dtype("int32")) is first
    False
    >>> address = id(first)
    >>> del first
    >>> id(pool.take((4,), np.dtype("int32"))) == address
    True
    """

    def __init__(self) -> None:
        """Hold nothing."""
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array with arbitrary contents."""
        with self._lock:
            for number in range(len(self._arrays)):
                if _num_references(self._arrays, number) == _REFERENCES_OF_FREE:
                    array = self._arrays[number]
                    if array.shape != shape or array.dtype != dtype:  # another field, a short batch
                        continue
                    return array
            array = np.empty(shape, dtype)
            if _REFERENCES_OF_FREE is None:
                return array
            self._arrays = [*self._arrays[-_MAX_POOLED:], array]
            return array


class BatchRows:
    """The memory of one batch, which threads fill row by row.

    An image is copied into its row right after it was decoded, while it is in the cache, and its
    own memory is used again for the next one. Stacking all images of a batch at the end costs
    about 80 us more for each of 224x224: it meets them cold, and each had its own pages.

    Args:
      num_rows: records of the batch.
      pool: where its arrays come from.
    """

    def __init__(self, num_rows: int, pool: BufferPool) -> None:
        """Allocate nothing yet: the first sample tells the shapes."""
        self._num_rows, self._pool = num_rows, pool
        self._lock = threading.Lock()
        self._buffers: dict[Any, np.ndarray] = {}

    def place(self, row: int, sample: Any) -> Any:
        """Return the sample with its large arrays moved into row `row`.

        >>> rows = BatchRows(2, BufferPool())
        >>> samples = [rows.place(row, {"x": np.full(2048, row)}) for row in range(2)]
        >>> stack_samples(samples, {}, rows)["x"].base is None
        True
        """
        if isinstance(sample, dict):
            return {key: self._place_leaf(row, key, leaf) for key, leaf in sample.items()}
        if type(sample) is tuple:
            return tuple(self._place_leaf(row, key, leaf) for key, leaf in enumerate(sample))
        return sample

    def _place_leaf(self, row: int, key: Any, leaf: Any) -> Any:
        if type(leaf) is not np.ndarray or leaf.nbytes < _MIN_PLACED_BYTES:
            return leaf
        buffer = self._buffers.get(key)
        if buffer is None:
            with self._lock:
                buffer = self._buffers.get(key)
                if buffer is None:
                    buffer = self._pool.take((self._num_rows, *leaf.shape), leaf.dtype)
                    self._buffers[key] = buffer
        if buffer.shape[1:] != leaf.shape or buffer.dtype != leaf.dtype:
            return leaf
        placed = buffer[row]
        placed[...] = leaf
        return placed

    def whole(self, leaves: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the buffer whose rows the leaves are, all of them and in order, else `None`."""
        base = leaves[0].base
        if len(leaves) != self._num_rows or not any(base is b for b in self._buffers.values()):
            return None
        start, stride = leaves[0].ctypes.data, base.strides[0]  # type: ignore[union-attr]
        is_whole = start == base.ctypes.data and all(  # type: ignore[union-attr]
            leaf.base is base and leaf.ctypes.data == start + row * stride
            for row, leaf in enumerate(leaves)
        )
        return base if is_whole else None  # type: ignore[return-value]


def stack_samples(
    samples: Sequence[Any], pad_values: Mapping[str, Any], rows: BatchRows | None = None
) -> Any:
    """Stack samples of one structure into a batch with leaves `[b, ...]`.

    Bytes become an object array (numpy's own bytes arrays drop trailing zeros). The entries of
    a dict named in `pad_values` are padded to the longest of the batch. Arrays that were placed
    in `rows` are there already.

    Raises:
      UnlikeError: a sample has another structure, or an entry another shape or dtype.

    >>> batch = stack_samples([{"x": np.asarray([1])}, {"x": np.asarray([2, 3])}], {"x": 0})
    >>> batch["x"].tolist()
    [[1, 0], [2, 3]]
    """
    if pad_values and isinstance(samples[0], dict):
        samples = _padded(samples, pad_values)
    try:
        return _tree.tree_map(lambda *leaves: _stack_leaf(leaves, rows), *samples)
    except UnlikeError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _shape_error(samples) from error


def _stack_leaf(leaves: Sequence[Any], rows: BatchRows | None) -> np.ndarray:
    first = leaves[0]
    if any(type(leaf) is not type(first) for leaf in leaves):
        leaves = [_tree.as_leaf(leaf) for leaf in leaves]
        first = leaves[0]
    if isinstance(first, np.ma.MaskedArray):
        _check_masks(leaves)
    if isinstance(first, np.ndarray) and any(leaf.dtype != first.dtype for leaf in leaves):
        raise ValueError("samples of several dtypes")
    if isinstance(first, np.ndarray) and first.ndim:
        placed = rows.whole(leaves) if rows is not None and first.base is not None else None
        return np.stack(leaves) if placed is None else placed
    if isinstance(first, (bytes, str)):
        stacked = np.empty(len(leaves), object)
        stacked[:] = leaves
        return stacked
    return np.asarray(leaves)  # scalars: twenty times faster than np.stack


def _padded(samples: Sequence[dict[str, Any]], pad_values: Mapping[str, Any]) -> list[Any]:
    padded = [dict(sample) for sample in samples]
    for name, value in pad_values.items():
        if name in samples[0]:
            longest = max(len(sample[name]) for sample in samples)
            for sample in padded:
                sample[name] = pad(sample[name], longest, value)
    return padded


def _check_masks(leaves: Sequence[np.ma.MaskedArray]) -> None:
    for number, leaf in enumerate(leaves):
        try:
            _tree.check_mask(leaf, f"sample {number} of a batch")
        except ValueError as error:
            unlike = UnlikeError(str(error))
            unlike.number = number
            raise unlike from None


class UnlikeError(ValueError):
    """Say that a sample cannot be stacked with the first of its batch; `number` is its row."""

    number: int = 0


def _shape_error(samples: Sequence[Any]) -> UnlikeError:
    listed = [_listed(sample) for sample in samples]
    number = next((i for i, each in enumerate(listed) if each != listed[0]), 0)
    error = UnlikeError(
        message(
            f"sample {number} of a batch",
            listed[number],
            listed[0],
            "The samples of a batch are stacked",
            "Let decode return one structure, shape and dtype, e.g. resize images, or leave "
            "batch_size out",
        )
    )
    error.number = number
    return error


def _listed(sample: Any) -> str:
    leaves = ((path, _tree.as_leaf(leaf)) for path, leaf in _tree.leaves_with_path(sample, ""))
    return ", ".join(f"{path} {list(leaf.shape)} {leaf.dtype}".strip() for path, leaf in leaves)


def pad(array: np.ndarray, length: int, value: Any) -> np.ndarray:
    """Return `array` `[n, ...]` padded on its first axis to `length`.

    >>> pad(np.asarray([1, 2]), 3, 0)
    array([1, 2, 0])
    """
    if isinstance(array, np.ma.MaskedArray):
        _tree.check_mask(array, "an array to be padded")
    if len(array) == length:
        return array
    padded = np.full((length, *array.shape[1:]), value, array.dtype)
    padded[: len(array)] = array
    return padded

"""Samples to batches: stacking, and padding of entries whose length differs between samples."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._errors import check_int, nearest
from penstock.readers import _tree
from penstock.readers._errors import FeatureError

# Below, looking the buffer up costs more than the copy that it saves.
_MIN_PLACED_BYTES = 1 << 12


class BatchMemory:
    """The memory of one batch, which threads fill row by row.

    An image is copied into its row right after it was decoded, while it is in the processor's
    cache, and its own memory is used for the next one. Stacking all images of a batch at the end
    costs about 80 us more for an image of 224x224: they are cold by then, on pages of their own.
    """

    def __init__(self, num_rows: int) -> None:
        # The first sample tells the shapes: nothing is allocated before.
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self._buffers: dict[Hashable, np.ndarray] = {}

    def place(self, row: int, sample: object) -> object:
        """Return the sample with its large arrays moved into row `row`."""
        if isinstance(sample, Mapping):
            return {key: self._place_leaf(row, key, leaf) for key, leaf in sample.items()}
        # Exactly a tuple: a named one would lose its names.
        if type(sample) is tuple:
            return tuple(self._place_leaf(row, key, leaf) for key, leaf in enumerate(sample))
        return sample

    def _place_leaf(self, row: int, key: Hashable, leaf: object) -> object:
        # No subclass: a masked array would lose its mask.
        if type(leaf) is not np.ndarray or leaf.nbytes < _MIN_PLACED_BYTES:
            return leaf
        buffer = self._buffers.get(key)
        if buffer is None:
            # Looked up again under the lock: another thread may have made it since.
            with self._lock:
                buffer = self._buffers.get(key)
                if buffer is None:
                    # Fresh for every batch. To fill one again that nobody holds any more, found by
                    # its reference count, made reading JPEGs 4 % faster on two threads
                    # (benchmarks/readers_records) and hung on how a release of CPython counts.
                    buffer = np.empty((self._num_rows, *leaf.shape), leaf.dtype)
                    self._buffers[key] = buffer
        # An odd one stays where it is: to stack it is the error that names it.
        if buffer.shape[1:] != leaf.shape or buffer.dtype != leaf.dtype:
            return leaf
        placed = buffer[row]
        placed[...] = leaf
        return placed

    def find_whole(self, leaves: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the buffer whose rows the leaves are, all of them and in order, else `None`."""
        base = leaves[0].base
        # A record that was skipped leaves a hole: then the batch is stacked anew.
        if len(leaves) != self._num_rows or not any(base is b for b in self._buffers.values()):
            return None
        start, stride = leaves[0].ctypes.data, base.strides[0]  # type: ignore[union-attr]
        is_whole = start == base.ctypes.data and all(  # type: ignore[union-attr]
            leaf.base is base and leaf.ctypes.data == start + row * stride
            for row, leaf in enumerate(leaves)
        )
        return base if is_whole else None  # type: ignore[return-value]


def stack_samples(samples: Sequence[object], memory: BatchMemory | None = None) -> _tree.ArrayTree:
    """Stack samples of one structure into a batch with leaves `[b, ...]`.

    Bytes become an object array (numpy's own bytes arrays drop trailing zeros). Arrays that were
    placed in `memory` are there already.
    """
    try:
        return _tree.tree_map(lambda *leaves: _stack_leaf(leaves, memory), *samples)
    except UnlikeError:
        raise
    # Whichever of them it is, the samples differ: the error says how, in the user's terms.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _shape_error(samples) from error


def _stack_leaf(leaves: Sequence[Any], memory: BatchMemory | None) -> np.ndarray:
    first = leaves[0]
    if type(first) is list or any(type(leaf) is not type(first) for leaf in leaves):
        leaves = [_tree.as_leaf(leaf) for leaf in leaves]
        first = leaves[0]
    if isinstance(first, np.ma.MaskedArray):
        _check_masks(leaves)
    # `np.stack` would widen the others without a word.
    if isinstance(first, np.ndarray) and any(leaf.dtype != first.dtype for leaf in leaves):
        raise ValueError("samples of several dtypes")
    # Of texts of two types each is an object array of its own.
    if isinstance(first, np.ndarray) and (first.ndim or first.dtype == object):
        placed = (
            memory.find_whole(leaves) if memory is not None and first.base is not None else None
        )
        return np.stack(leaves) if placed is None else placed
    if isinstance(first, (bytes, str)):
        stacked = np.empty(len(leaves), object)
        stacked[:] = leaves
        return stacked
    # Scalars: twenty times faster than `np.stack`.
    return np.asarray(leaves)


def _check_masks(leaves: Sequence[np.ma.MaskedArray]) -> None:
    for number, leaf in enumerate(leaves):
        try:
            _tree.check_mask(leaf, f"sample {number} of a batch")
        except ValueError as error:
            raise UnlikeError(str(error), number) from None


class UnlikeError(ValueError):
    """A sample cannot be stacked with the first one of its batch; `number` is its row."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def _shape_error(samples: Sequence[object]) -> UnlikeError:
    listed = [_describe_sample(sample) for sample in samples]
    number = next((i for i, description in enumerate(listed) if description != listed[0]), 0)
    return UnlikeError(
        f"sample {number} of a batch got {listed[number]}, expected {listed[0]}. The samples of a "
        "batch are stacked. Let decode return one structure, shape and dtype, e.g. resize images, "
        "or leave batch_size out.",
        number,
    )


def _describe_sample(sample: object) -> str:
    leaves = ((path, _tree.as_leaf(leaf)) for path, leaf in _tree.leaves_with_path(sample, ""))
    return ", ".join(f"{path} {list(leaf.shape)} {leaf.dtype}".strip() for path, leaf in leaves)


def pad(array: np.ndarray, length: int, value: object) -> np.ndarray:
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


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How an entry `[L, ...]` whose length `L` varies between samples is padded.

    The length before padding is added as `<name>_length`, int32, batched `[B]`.

    Args:
      value: the value to pad with; `b""` or `""` for bytes or strings.
      max_length: pad every sample to this length, so that all batches have one shape and the
        program compiles once; a longer sample is an error. Without it, each batch is padded to its
        longest sample, and each new length is a new compilation.

    Raises:
      ValueError: `max_length` below 1.

    >>> from penstock import readers
    >>> source = [{"ids": np.asarray([4, 5])}, {"ids": np.asarray([6])}]
    >>> batch = next(readers.indexed(source, 2, pad={"ids": Padding(max_length=3)})())
    >>> batch["ids"].tolist(), batch["ids_length"].tolist()
    ([[4, 5, 0], [6, 0, 0]], [2, 1])
    """

    value: Any = 0
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None:
            check_int("Padding(max_length)", self.max_length, 1, "It counts rows of an entry.")


def add_lengths(sample: Any, padding: Mapping[str, Padding]) -> object:
    """Return a sample with the lengths of its entries, those padded that have a `max_length`."""
    for name, how in padding.items():
        path, leaf = _find_entry(sample, name)
        place, holder = f"{path[-1]}_length", sample
        for key in path[:-1]:
            holder = holder[key]
        if place in holder:
            raise ValueError(
                f"pad got the entry {name!r} beside {place!r}, expected another name for that. The "
                "length before padding takes that place in a sample. Rename it in decode=."
            )
        array = _as_row(leaf, name, how)
        length = np.asarray(len(array), np.int32)
        if how.max_length is not None:
            check_length(f"entry {name!r}", len(array), how.max_length, "values", "sample")
            array = pad(array, how.max_length, how.value)
        sample = _replace(sample, path, {path[-1]: array, place: length})
    return sample


def pad_to_longest(samples: Sequence[object], padding: Mapping[str, Padding]) -> Sequence[object]:
    """Return samples with each entry named in `padding` as long as its longest."""
    for name, how in padding.items():
        if how.max_length is None:
            entries = [_find_entry(sample, name) for sample in samples]
            longest = max(len(leaf) for _, leaf in entries)
            samples = [
                _replace(sample, path, {path[-1]: pad(leaf, longest, how.value)})
                for sample, (path, leaf) in zip(samples, entries, strict=True)
            ]
    return samples


def _find_entry(sample: object, name: str) -> tuple[tuple[str, ...], Any]:
    """Return an entry, named `outer/inner` in nested dicts, behind the keys that lead to it."""
    node, path, rest = sample, (), name
    while isinstance(node, Mapping):
        # The whole name first: an entry may itself be called "a/b".
        if rest in node:
            return (*path, rest), node[rest]
        outer, _, inner = rest.partition("/")
        if not inner or outer not in node:
            break
        node, path, rest = node[outer], (*path, outer), inner
    names = list(node) if isinstance(node, Mapping) else []
    expected = f"entries among {names}" if names else f"a dict, not {type(node).__name__}"
    raise ValueError(
        f"pad got the entry {name!r}, expected {expected}. A sample has no such entry."
        f"{nearest(rest, names)} Name entries as the samples do, 'outer/inner' in nested dicts."
    )


def _replace(sample: Any, path: Sequence[str], entries: Mapping[str, object]) -> dict[str, object]:
    """Return a sample with other entries in the dict that holds the last key of a path."""
    if len(path) > 1:
        entries = {path[0]: _replace(sample[path[0]], path[1:], entries)}
    return {**sample, **entries}


def _as_row(leaf: object, name: str, how: Padding) -> np.ndarray:
    """Return an entry as an array that can be padded, strings as objects: they differ in size."""
    array = leaf if isinstance(leaf, np.ma.MaskedArray) else np.asarray(leaf)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    if not array.ndim:
        raise ValueError(
            f"pad got the entry {name!r} of shape [], expected an entry [L, ...]. The first axis "
            "is padded. Leave it out of pad."
        )
    is_text = isinstance(how.value, (bytes, str))
    fits = is_text == (array.dtype.kind == "O")
    if fits and array.dtype.kind in "biu":
        # 0.5 or 300 in a batch of uint8 would be cut without a word.
        fits = np.min_scalar_type(how.value).kind in "biu"
        fits = fits and bool(np.asarray(how.value).astype(array.dtype) == how.value)
    if not fits:
        raise ValueError(
            f"pad got Padding(value={how.value!r}) for the entry {name!r} of dtype {array.dtype}, "
            "expected a value of that dtype. An array has one dtype. Pass b'' for bytes, '' for "
            "strings, a whole number for integers."
        )
    return array


def check_length(thing: str, count: int, max_length: int, words: str, of: str) -> None:
    """Raise unless a sample has at most so many words; with `on_error="skip"` it is left out."""
    if count > max_length:
        raise FeatureError(
            f"{thing} got {count} {words}, expected at most {max_length}. max_length is a bound on "
            f"every {of}. Raise max_length."
        )

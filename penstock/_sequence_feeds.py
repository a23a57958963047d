"""Feeds of sequences: lists and padded arrays brought into one form, and padded to buckets."""

from __future__ import annotations

import bisect
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from penstock._program.inputs import LEAST_BUCKET, LEAST_COUNT, FeedSpec
from penstock._program.sequences import NestedSequence, Sequence

_COUNTS = "/count"
"""Behind an input's name: how many inner sequences there are. No input has a slash in its name."""


class Words(NamedTuple):
    """The sequences of a batch, end to end: values `[sum of lengths, ...]`.

    Of sequences of sequences the lengths are those of all the inner ones, and `counts` `[B]` says
    how many of them each example has.
    """

    values: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray | None = None

    @property
    def num_examples(self) -> int:
        return len(self.lengths if self.counts is None else self.counts)


def is_lengths(name: str, specs: Mapping[str, FeedSpec]) -> bool:
    """Return whether a feed's name is that of the lengths of a sequence, such as `words_length`."""
    spec = specs.get(name.removesuffix("_length")) if name.endswith("_length") else None
    return spec is not None and spec.lod_level > 0


def check_spelling(spec: FeedSpec, value: object, carried: Iterable[str]) -> None:
    """Raise if padded sequences without lengths come beside lengths of theirs."""
    if isinstance(value, (list, tuple, Sequence, NestedSequence)):
        return
    wanted = f"{spec.name}_length"
    # A high bar: a feed may carry the lengths of another column.
    if near := difflib.get_close_matches(wanted, map(str, carried), n=1, cutoff=0.85):
        raise spec.refuse(
            f"a padded array beside {near[0]!r}, expected {wanted!r} beside it. Without lengths "
            "every row counts whole. Rename the column in the reader."
        )


def read_words(value: Any, lengths: Any, spec: FeedSpec) -> Words:
    """Return the sequences of an input end to end, see `join_words`; or sequences of sequences."""
    if spec.lod_level == 1:
        return join_words(value, lengths, spec)
    expected = (
        "expected a list of examples, each a list of sequences, as it was declared with "
        "lod_level=2."
    )
    if isinstance(value, NestedSequence):
        shape = np.shape(value.values)
        _check_lengths(value.counts, shape, shape[:1], "sequences of each example", spec)
        _check_lengths(value.lengths, shape, shape[:2], "words of each sequence", spec)
        value = value.cut()
    if lengths is not None or not isinstance(value, (list, tuple)):
        raise spec.refuse(f"{type(value).__name__}, {expected}")
    for number, example in enumerate(value):
        if not np.iterable(example):
            raise spec.refuse(f"{example!r} as example {number}, {expected}")
    words = [join_words(list(example), None, spec) for example in value]
    empty = [np.zeros((0, *spec.shape), spec.dtype)]
    return Words(
        np.concatenate([part.values for part in words] or empty),
        np.concatenate([part.lengths for part in words] or [np.zeros(0, np.int32)]),
        np.asarray([len(part.lengths) for part in words], np.int32),
    )


def join_words(value: Any, lengths: Any, spec: FeedSpec) -> Words:
    """Return sequences end to end, of a list, a `Sequence`, or an array `[B, T, ...]`."""
    if hasattr(value, "numpy"):  # a tensor of torch or TensorFlow, which may be ragged
        value = _as_array(value, spec)
    is_padded = isinstance(value, (np.ndarray, jax.Array)) and value.dtype != object
    # torch's PackedSequence is a named tuple, whose fields are no sequences.
    is_list = not is_padded and (
        (isinstance(value, (list, tuple)) and not hasattr(value, "_fields"))
        or getattr(value, "ndim", 0) == 1
    )
    if lengths is not None and (is_list or isinstance(value, Sequence)):
        raise spec.refuse(
            f"a {'list' if is_list else 'Sequence'} beside '{spec.name}_length', expected a padded "
            "array beside it. The lengths are known already. Leave the second out."
        )
    if isinstance(value, Sequence):
        value, lengths = _as_array(value.values, spec), value.lengths
    elif is_list:
        return _join_list(value, spec)
    elif not is_padded:
        raise spec.refuse(f"{type(value).__name__}, {_expect(spec)}.")
    values = np.asarray(value)
    if values.ndim < 2:
        raise spec.refuse(f"an array of shape {list(values.shape)}, {_expect(spec)}.")
    if lengths is None:
        lengths = np.full(len(values), values.shape[1], np.int32)
    counted = "words of each sequence"
    lengths = _check_lengths(lengths, values.shape, values.shape[:1], counted, spec)
    is_word = np.arange(values.shape[1]) < lengths[:, None]
    return Words(_as_words(values[is_word], spec), lengths.astype(np.int32))


def _check_lengths(
    lengths: Any, shape: tuple[int, ...], of: tuple[int, ...], counted: str, spec: FeedSpec
) -> np.ndarray:
    """Return lengths end to end; raise unless there is one for each of `of`, the first axes."""
    lengths = _as_array(lengths, spec).reshape(-1)
    number, most = math.prod(of), shape[len(of)]
    if (
        len(lengths) != number
        or lengths.dtype.kind not in "iu"
        or (number and not 0 <= lengths.min() <= lengths.max() <= most)
    ):
        shown = f"{lengths[:8].tolist()}{' ...' if len(lengths) > 8 else ''}"
        raise spec.refuse(
            f"lengths {shown} for padded values of shape {list(shape)}, expected {number} whole "
            f"numbers from 0 to {most}. They count the {counted}."
        )
    return lengths


def _as_array(value: Any, spec: FeedSpec, what: str = "values or lengths") -> np.ndarray:
    """Return a sequence, or the values or lengths of padded ones, as an array on the host."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise spec.refuse(
            f"masked {what}, expected arrays without a mask. What lies under it would be taken for "
            "data. Pass the lengths that are meant."
        )
    # numpy itself makes no array of TensorFlow's ragged tensors.
    to_numpy = getattr(value, "numpy", None)
    try:
        return np.asarray(value) if to_numpy is None else to_numpy()
    # Such as torch's TypeError for a tensor on a GPU, and RuntimeError for one with a gradient.
    except Exception as error:
        raise spec.refuse(f"{what} of which numpy makes no array: {error}") from error


def _join_list(value: Any, spec: FeedSpec) -> Words:
    rows = []
    for number, item in enumerate(value):
        row = _as_array(item, spec, f"sequence {number}")
        if not row.ndim:
            raise spec.refuse(f"{item!r} as sequence {number}, {_expect(spec)}.")
        rows.append(_as_words(row, spec))
    # An empty list is of floats to numpy, and would make floats of the others.
    filled = [row for row in rows if len(row)]
    values = np.concatenate(filled) if filled else np.zeros((0, *spec.shape), spec.dtype)
    return Words(values, np.asarray([len(row) for row in rows], np.int32))


def _as_words(values: np.ndarray, spec: FeedSpec) -> np.ndarray:
    """Return words `[N, *spec.shape]`; those of one number each may come as `[N]`."""
    if values.shape[1:] == spec.shape:
        return values
    if values.ndim <= 2 and values.size == len(values) * int(np.prod(spec.shape)):
        return values.reshape(len(values), *spec.shape)
    raise spec.refuse(f"words of shape {list(values.shape[1:])}, {_expect(spec)}.")


def _expect(spec: FeedSpec) -> str:
    word = ", ".join(map(str, spec.shape))
    return (
        f"expected a list of arrays [length, {word}] of any length, or a ps.Sequence of values "
        f"[batch, longest, {word}] and lengths [batch]"
    )


def choose_lengths(specs: Mapping[str, FeedSpec], longest: Mapping[str, int]) -> dict[str, int]:
    """Return what sequences are padded to, from what `find_longest` found."""
    return {
        name: choose_bucket(specs[name], longest[name])
        if name in specs
        else max(LEAST_COUNT, 1 << max(longest[name] - 1, 0).bit_length())
        for name in longest
    }


def choose_bucket(spec: FeedSpec, longest: int) -> int:
    """Return the length that a batch is padded to whose longest sequence has `longest` words."""
    if not spec.buckets:
        return max(LEAST_BUCKET, 1 << (longest - 1).bit_length()) if longest else LEAST_BUCKET
    place = bisect.bisect_left(spec.buckets, longest)
    if place == len(spec.buckets):
        raise spec.refuse(
            f"a sequence of length {longest}, expected at most {spec.buckets[-1]}, the last of its "
            f"buckets {list(spec.buckets)}. Nothing is cut off in silence. Add a longer bucket, or "
            "cut or leave out long sequences in the reader."
        )
    return spec.buckets[place]


def pad_input(
    name: str, words: Words, batch_size: int, lengths: Mapping[str, int]
) -> Sequence | NestedSequence:
    """Return an input padded to a batch size and to the lengths chosen for it, on the host."""
    length = lengths[name]
    if words.counts is None:
        return pad_words(words, batch_size, length)
    width = lengths[name + _COUNTS]
    # As many inner sequences for each example: those that are not there have no words.
    is_there = np.arange(width) < words.counts[:, None]
    inner = np.zeros(is_there.shape, np.int32)
    inner[is_there] = words.lengths
    padded = pad_words(Words(words.values, inner.reshape(-1)), inner.size, length)
    values: Any = padded.values.reshape(*inner.shape, *padded.values.shape[1:])
    rows: list[Any] = [pad_rows(x, batch_size) for x in (values, inner, words.counts)]
    return NestedSequence(*rows)


def pad_rows(column: np.ndarray, size: int) -> np.ndarray:
    """Return an array with rows added up to `size`, which no layer sees."""
    missing = size - len(column)
    if not missing:
        return column
    # What an empty process sends has no row to repeat.
    last = column[-1:] if len(column) else np.zeros((1, *column.shape[1:]), column.dtype)
    return np.concatenate([column, np.repeat(np.asarray(last), missing, axis=0)])


def pad_words(words: Words, batch_size: int, length: int) -> Sequence:
    """Return sequences padded to a batch size and to a length, on the host.

    With copies of a sequence's last word, so that what a program computes of it is as finite; one
    without words is padded with zeros. What stands for examples no layer sees.
    """
    values, lengths = words.values, words.lengths
    if not len(values):
        padded = np.zeros((batch_size, length, *values.shape[1:]), values.dtype)
        return Sequence(padded, np.zeros(batch_size, np.int32))  # pyright: ignore[reportArgumentType]
    starts, lengths = (pad_rows(x, batch_size) for x in (np.cumsum(lengths) - lengths, lengths))
    last = np.maximum(lengths - 1, 0)
    places = starts[:, None] + np.minimum(np.arange(length), last[:, None])
    padded = values[np.minimum(places, len(values) - 1)]
    if not lengths.all():
        padded[lengths == 0] = 0
    return Sequence(padded, lengths.astype(np.int32))  # pyright: ignore[reportArgumentType]


def find_longest(batches: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Return the largest length of each sequence over checked batches, by input name."""
    longest: dict[str, int] = {}
    columns = [item for batch in batches for item in batch.items()]
    for name, words in columns:
        if isinstance(words, Words):
            for key, numbers in ((name, words.lengths), (name + _COUNTS, words.counts)):
                if numbers is not None:
                    longest[key] = max(longest.get(key, 0), int(numbers.max(initial=0)))
    return longest

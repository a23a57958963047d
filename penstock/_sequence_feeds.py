"""Feeds of sequences: lists and padded arrays brought into one form, and padded to buckets."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from penstock._errors import FeedError
from penstock._program.requests import FeedSpec
from penstock._program.sequences import Sequence

LEAST_BUCKET = 16
"""The first length of the powers of two that sequences are padded to by default."""


class Words(NamedTuple):
    """The sequences of a batch, end to end.

    Attributes:
      values: `[sum of lengths, ...]`.
      lengths: `[B]`, int32.
    """

    values: np.ndarray
    lengths: np.ndarray

    @property
    def longest(self) -> int:
        """The largest length; 0 without sequences."""
        return int(self.lengths.max(initial=0))


def is_lengths(name: str, specs: Mapping[str, FeedSpec]) -> bool:
    """Return whether a feed's name is that of the lengths of a sequence, such as `words_length`."""
    spec = specs.get(name.removesuffix("_length")) if name.endswith("_length") else None
    return spec is not None and spec.lod_level > 0


def join_words(value: Any, lengths: Any, spec: FeedSpec) -> Words:
    """Return sequences end to end.

    Arguments:
      value: a list of arrays of any length, a `Sequence`, or an array `[B, T, ...]`.
      lengths: those of an array; None where all of its sequences are of length `T`.

    Raises:
      FeedError: it is none of them.
    """
    if isinstance(value, Sequence):
        if lengths is not None:
            raise FeedError(_refuse_lengths("a Sequence", spec))
        value, lengths = _as_array(value.values, spec), value.lengths
    if not isinstance(value, (np.ndarray, jax.Array)) or value.dtype == object:
        return _join_list(value, lengths, spec)
    values = np.asarray(value)
    if values.ndim < 2:
        raise FeedError(
            f"feed {spec.name!r} got an array of shape {list(values.shape)}, {_expect(spec)}."
        )
    if lengths is None:
        lengths = np.full(len(values), values.shape[1], np.int32)
    lengths = _as_array(lengths, spec).reshape(-1)
    if (
        len(lengths) != len(values)
        or lengths.dtype.kind not in "iu"
        or (len(lengths) and not 0 <= lengths.min() <= lengths.max() <= values.shape[1])
    ):
        raise FeedError(
            f"feed {spec.name!r} got lengths {_show(lengths)} for padded values of shape "
            f"{list(values.shape)}, expected {len(values)} whole numbers from 0 to "
            f"{values.shape[1]}. They count the words of each sequence."
        )
    is_word = np.arange(values.shape[1]) < lengths[:, None]
    return Words(_as_words(values[is_word], spec), lengths.astype(np.int32))


def _as_array(value: Any, spec: FeedSpec) -> np.ndarray:
    """Return the values or the lengths of padded sequences as an array on the host."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise FeedError(
            f"feed {spec.name!r} got masked values or lengths, expected arrays without a mask. "
            "What lies under it would be taken for data. Pass the lengths that are meant."
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise FeedError(
            f"feed {spec.name!r} got values or lengths of which numpy makes no array: {error}"
        ) from error


def _refuse_lengths(what: str, spec: FeedSpec) -> str:
    return (
        f"feed {spec.name!r} got {what} beside '{spec.name}_length', expected a padded array "
        "beside it. The lengths are known already. Leave the second out."
    )


def _join_list(value: Any, lengths: object, spec: FeedSpec) -> Words:
    is_list = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1
    if lengths is not None and is_list:
        raise FeedError(_refuse_lengths("a list", spec))
    if not is_list:
        raise FeedError(f"feed {spec.name!r} got {type(value).__name__}, {_expect(spec)}.")
    rows = []
    for number, each in enumerate(value):
        try:
            row = np.asarray(each)
        except ValueError as error:
            raise FeedError(
                f"feed {spec.name!r} got sequence {number} of which numpy makes no array: {error}"
            ) from error
        if not row.ndim:
            raise FeedError(
                f"feed {spec.name!r} got {each!r} as sequence {number}, {_expect(spec)}."
            )
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
    raise FeedError(
        f"feed {spec.name!r} got words of shape {list(values.shape[1:])}, {_expect(spec)}."
    )


def _expect(spec: FeedSpec) -> str:
    word = ", ".join(map(str, spec.shape))
    return (
        f"expected a list of arrays [length, {word}] of any length, or a ps.Sequence of values "
        f"[batch, longest, {word}] and lengths [batch]"
    )


def _show(lengths: np.ndarray) -> str:
    return f"{lengths[:8].tolist()}{' ...' if len(lengths) > 8 else ''}"


def choose_bucket(spec: FeedSpec, longest: int) -> int:
    """Return the length that a batch is padded to whose longest sequence has `longest` words.

    Raises:
      FeedError: no bucket is as long.
    """
    if not spec.buckets:
        return max(LEAST_BUCKET, 1 << (longest - 1).bit_length()) if longest else LEAST_BUCKET
    place = bisect.bisect_left(spec.buckets, longest)
    if place == len(spec.buckets):
        raise FeedError(
            f"feed {spec.name!r} got a sequence of length {longest}, expected at most "
            f"{spec.buckets[-1]}, the last of its buckets {list(spec.buckets)}. Nothing is cut "
            "off in silence. Add a longer bucket, or cut or leave out long sequences in the reader."
        )
    return spec.buckets[place]


def pad_words(words: Words, batch_size: int, length: int) -> Sequence:
    """Return sequences padded to a batch size and to a length, on the host.

    With copies of a sequence's last word and of the last example: whatever the program computes of
    what is real is as finite on its copy. A sequence without words is padded with zeros.
    """
    values, lengths = words
    if not len(lengths):
        return _empty(batch_size, length, values)
    lengths = np.concatenate([lengths, np.repeat(lengths[-1:], batch_size - len(lengths))])
    starts = np.cumsum(words.lengths) - words.lengths
    starts = np.concatenate([starts, np.repeat(starts[-1:], batch_size - len(starts))])
    if not len(values):
        return _empty(batch_size, length, values)
    last = np.maximum(lengths - 1, 0)
    places = starts[:, None] + np.minimum(np.arange(length), last[:, None])
    padded = values[np.minimum(places, len(values) - 1)]
    if not lengths.all():
        padded[lengths == 0] = 0
    return Sequence(padded, lengths.astype(np.int32))  # pyright: ignore[reportArgumentType]


def _empty(batch_size: int, length: int, values: np.ndarray) -> Sequence:
    padded = np.zeros((batch_size, length, *values.shape[1:]), values.dtype)
    return Sequence(padded, np.zeros(batch_size, np.int32))  # pyright: ignore[reportArgumentType]


def find_longest(batches: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Return the largest length of each sequence over checked batches, by input name."""
    longest: dict[str, int] = {}
    for batch in batches:
        for name, column in batch.items():
            if isinstance(column, Words):
                longest[name] = max(longest.get(name, 0), column.longest)
    return longest

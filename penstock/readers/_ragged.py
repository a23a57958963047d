"""Padding of entries whose length differs between samples, and their lengths beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._errors import message, nearest
from penstock.readers._batching import pad
from penstock.readers._errors import FeatureError, check_int


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
            check_int("Padding(max_length)", self.max_length, 1, "It counts rows of an entry")


def add_lengths(sample: object, padding: Mapping[str, Padding]) -> object:
    """Return a sample with the lengths of its entries, those padded that have a `max_length`.

    >>> add_lengths({"x": {"y": [1, 2]}}, {"x/y": Padding()})
    {'x': {'y': array([1, 2]), 'y_length': array(2, dtype=int32)}}

    Raises:
      ValueError: an entry is not there, has no axis or another dtype than the padding.
      FeatureError: an entry is longer than `max_length`.
    """
    for name, how in padding.items():
        # The loop's variables are bound as defaults: a closure would see their last values.
        def change(
            key: str, leaf: object, name: str = name, how: Padding = how
        ) -> dict[str, np.ndarray]:
            array = _as_row(leaf, name, how)
            count = len(array)
            if how.max_length is not None:
                if count > how.max_length:
                    raise _too_long(name, count, how.max_length)
                array = pad(array, how.max_length, how.value)
            return {key: array, f"{key}_length": np.asarray(count, np.int32)}

        sample = _change(sample, name, name, change)
    return sample


def pad_to_longest(samples: Sequence[object], padding: Mapping[str, Padding]) -> Sequence[object]:
    """Return samples with each entry named in `padding` as long as its longest."""
    for name, how in padding.items():
        if how.max_length is not None:
            continue
        lengths: list[int] = []

        def measure(
            key: str, leaf: np.ndarray, lengths: list[int] = lengths
        ) -> dict[str, np.ndarray]:
            lengths.append(len(leaf))
            # Nothing changes: `_change` is only used to find the entry.
            return {}

        for sample in samples:
            _change(sample, name, name, measure)
        longest = max(lengths)

        def lengthen(
            key: str, leaf: np.ndarray, longest: int = longest, how: Padding = how
        ) -> dict[str, np.ndarray]:
            return {key: pad(leaf, longest, how.value)}

        samples = [_change(sample, name, name, lengthen) for sample in samples]
    return samples


def _change(
    sample: object,
    name: str,
    whole_name: str,
    change: Callable[[str, Any], Mapping[str, np.ndarray]],
) -> dict[str, object]:
    """Return the sample with the entry of a name, `outer/inner` in nested dicts, changed."""
    if isinstance(sample, dict):
        # The whole name first: an entry may itself be called "a/b".
        if name in sample:
            return {**sample, **change(name, sample[name])}
        outer, _, inner = name.partition("/")
        if inner and outer in sample:
            return {**sample, outer: _change(sample[outer], inner, whole_name, change)}
    known = list(sample) if isinstance(sample, dict) else []
    raise ValueError(
        message(
            "pad",
            f"the entry {whole_name!r}",
            f"entries among {known}" if known else f"a dict, not {type(sample).__name__}",
            f"A sample has no such entry.{nearest(name, known)}",
            "Name entries as the samples do, 'outer/inner' in nested dicts",
        )
    )


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
        fits = np.min_scalar_type(how.value).kind in "biu" and how.value == int(how.value)
        fits = fits and np.can_cast(np.min_scalar_type(how.value), array.dtype, "same_kind")
    if not fits:
        raise ValueError(
            f"pad got Padding(value={how.value!r}) for the entry {name!r} of dtype {array.dtype}, "
            "expected a value of that dtype. An array has one dtype. Pass b'' for bytes, '' for "
            "strings, a whole number for integers."
        )
    return array


def _too_long(name: str, count: int, max_length: int) -> Exception:
    # With on_error="skip" the sample is left out.
    return FeatureError(
        f"entry {name!r} got {count} values, expected at most {max_length}. max_length is a bound "
        "on every sample. Raise max_length."
    )

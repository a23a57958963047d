"""How long a sample is: the length of one field or several, or what a function says."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from penstock._errors import listed

Field = str | int
"""A key of samples that are dicts, or a place in those that are tuples."""


def choose_measure(
    caller: str,
    field: Field | Sequence[Field] | None,
    length: Callable[[Any], int] | None,
) -> Callable[[Any], int]:
    """Return the function that tells how long a sample is.

    Args:
      caller: the reader's name, for messages.
      field: whose length it is; of several fields the longest counts. Without a field and without
        a function the sample itself is the sequence.
      length: a function of a sample, in place of a field.

    Raises:
      ValueError: both are given, or no field of several.

    >>> measure = choose_measure("batch_by_length", ("source", "target"), None)
    >>> measure({"source": [1, 2], "target": [3, 4, 5]})
    3
    """
    if length is not None:
        if field is not None:
            raise ValueError(
                f"{caller} got field={field!r} and length=, expected one of them. Either says how "
                "long a sample is. Leave one out."
            )
        return lambda sample: _check_length(caller, length(sample))
    if field is None:
        return lambda sample: count_words(caller, "a sample", sample)
    fields = (field,) if isinstance(field, (str, int)) else tuple(field)
    if not fields:
        raise ValueError(
            f"{caller}(field) got {field!r}, expected a name or more. A sample is as long as its "
            "longest field. Name the fields that are sequences."
        )
    return lambda sample: max(
        count_words(caller, f"field {each!r}", get_field(caller, sample, each)) for each in fields
    )


def get_field(caller: str, sample: Any, field: Field) -> Any:
    """Return a field of a sample.

    Raises:
      ValueError: the sample has no such field.

    >>> get_field("pack", {"words": [1, 2]}, "words")
    [1, 2]
    """
    if isinstance(field, str):
        known = list(sample) if isinstance(sample, dict) else []
        if field in known:
            return sample[field]
        got = f"a dict of {listed(known)}" if known else f"a {type(sample).__name__}"
    else:
        if isinstance(sample, (tuple, list)) and 0 <= field < len(sample):
            return sample[field]
        is_row = isinstance(sample, (tuple, list))
        got = f"a {type(sample).__name__}{f' of {len(sample)} fields' if is_row else ''}"
    raise ValueError(
        f"{caller} got {got}, expected a sample with the field {field!r}. Dicts have names and "
        "tuples have places; lists of samples are batches. Name a field of the samples, and pass a "
        "reader of samples."
    )


def count_words(caller: str, thing: str, value: Any) -> int:
    """Return the length of a sequence.

    Raises:
      ValueError: it is none.

    >>> count_words("pack", "a sample", [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
    3
    """
    # Strings and dicts have a length too, and it is that of no sequence of words.
    if not isinstance(value, (str, bytes, dict)):
        try:
            return len(value)
        except TypeError:
            pass
    raise ValueError(
        f"{caller} got {thing} of type {type(value).__name__}, expected an array or a list of "
        "words, [length, ...]. Samples are told apart by their lengths. Name the field of the "
        "samples that is a sequence, or pass length=."
    )


def _check_length(caller: str, length: Any) -> int:
    try:
        number = operator.index(length)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(
            f"{caller}(length=) got {length!r} for a sample, expected an int >= 0. It counts the "
            "words of a sample. Return a length."
        )
    return number

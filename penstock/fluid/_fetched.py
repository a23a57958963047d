"""What Fluid fetches: lists of arrays, whatever structure a program function returns."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock._program.sequences import CutNestedSequences, CutSequences
from penstock.events import EndEpoch, EndStep


class FetchedArray(np.ndarray):
    """A numpy array that converts to a number where it has one element.

    >>> as_fetched(0.25)
    [FetchedArray(0.25)]
    >>> "%.1f and %.1f" % (as_fetched(0.25)[0], as_fetched(0.25)[0][0])
    '0.2 and 0.2'
    """

    _lengths: tuple[tuple[int, ...], ...] = ()

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the lengths of sequences that stand here end to end, in a list; else no list.

        Of sequences of sequences there is a list before it, of how many each example has. A part of
        an array knows no lengths.
        """
        return [list(level) for level in self._lengths]

    def lod(self) -> list[list[int]]:
        """Return where each sequence begins, and the last one ends, in a list for each level."""
        return [[0, *itertools.accumulate(level)] for level in self.recursive_sequence_lengths()]

    # Scripts of 2018 write "%f" % event.metrics[0] and "%.2f" % row, also event.metrics[0][0]: a
    # scalar had the shape [1] there, and numpy turned every array of one element into a number.
    # numpy 2.4 refuses to. Scalars stay arrays without axes, by which handlers tell them.
    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else str(self)

    def __getitem__(self, index: Any) -> Any:
        """Return a part; a scalar is also its own first element, as when its shape was `[1]`."""
        is_first = self.ndim == 0 and isinstance(index, int) and index in (0, -1)
        return super().__getitem__(() if is_first else index)


def as_fetched(values: object) -> Any:
    """Return values as a list of arrays, even a single value; dicts stay dicts, nested ones too.

    Sequences become one array, `[sum of lengths, ...]`, that knows their lengths.

    >>> as_fetched((0.5, np.ones([2, 3])))[1].shape
    (2, 3)
    >>> as_fetched({"loss": 0.5})
    {'loss': FetchedArray(0.5)}
    >>> as_fetched((0.5, {"top": (1.0, 2.0)}))
    [FetchedArray(0.5), {'top': [FetchedArray(1.), FetchedArray(2.)]}]
    """
    # A handler set `fetch_metrics` to False.
    if values is None:
        return []
    if isinstance(values, Mapping):
        return {name: _as_array(value) for name, value in values.items()}
    is_cut = isinstance(values, CutSequences | CutNestedSequences)
    is_one = is_cut or not isinstance(values, tuple | list)
    many: Any = [values] if is_one else values
    return [_as_array(value) for value in many]


def _as_array(value: object) -> Any:
    if isinstance(value, CutNestedSequences):
        joined = _as_array(CutSequences(sequence for example in value for sequence in example))
        joined._lengths = (tuple(map(len, value)), *joined._lengths)
        return joined
    if isinstance(value, CutSequences):
        # Without a sequence no array knows what a word is.
        joined = (np.concatenate(value) if value else np.zeros([0])).view(FetchedArray)
        joined._lengths = (tuple(map(len, value)),)
        return joined
    if isinstance(value, Mapping | tuple | list):
        return as_fetched(value)
    # An epoch has no value of a metric that keeps rows.
    return None if value is None else np.asarray(value).view(FetchedArray)


def with_metrics(event: object, convert: Callable[[object], object]) -> object:
    """Return the event with its metrics converted, still fetched when they are first read.

    >>> with_metrics(EndStep(0, 3, 3, read=lambda: 0.5), lambda metrics: [metrics]).metrics
    [0.5]
    """
    if not isinstance(event, EndStep | EndEpoch):
        return event
    converted: Any = copy.copy(event)
    # Read only when a handler asks: to fetch a value waits for the device.
    converted._read = lambda: convert(event.metrics)
    return converted

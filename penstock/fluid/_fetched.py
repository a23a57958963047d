"""What Fluid fetches: lists of arrays, from whatever structure a program function returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class FetchedArray(np.ndarray):
    """A numpy array whose only element still stands for a number.

    Scripts of 2018 write `"%f" % event.metrics[0]` and `"%.2f" % row`, also `event.metrics[0][0]`:
    a scalar had the shape `[1]` there, and numpy turned any array of one element into a number.
    numpy 2.4 refuses; here both ways of writing go on.

    >>> fetched(0.25)
    [FetchedArray(0.25)]
    >>> "%.1f and %.1f" % (fetched(0.25)[0], fetched(0.25)[0][0])
    '0.2 and 0.2'
    """

    def __float__(self) -> float:
        """Return the only element."""
        return float(self.item())

    def __int__(self) -> int:
        """Return the only element, its fraction cut off."""
        return int(self.item())

    def __format__(self, spec: str) -> str:
        """Return the only element in the given format; without one the array as text."""
        return format(self.item(), spec) if spec and self.size == 1 else str(self)

    def __getitem__(self, index: Any) -> Any:
        """Return a part; a scalar is also its own first element, as when its shape was `[1]`."""
        is_first = self.ndim == 0 and isinstance(index, int) and index in (0, -1)
        return super().__getitem__(() if is_first else index)


def fetched(values: Any) -> Any:
    """Return values as a list of arrays, one value too; a dict keeps its names, inside it too.

    >>> fetched((0.5, np.ones([2, 3])))[1].shape
    (2, 3)
    >>> fetched({"loss": 0.5})
    {'loss': FetchedArray(0.5)}
    >>> fetched((0.5, {"top": (1.0, 2.0)}))
    [FetchedArray(0.5), {'top': [FetchedArray(1.), FetchedArray(2.)]}]
    """
    if values is None:  # not fetched
        return []
    if isinstance(values, Mapping):
        return {name: _array(value) for name, value in values.items()}
    many = values if isinstance(values, tuple | list) else [values]
    return [_array(value) for value in many]


def _array(value: Any) -> Any:
    is_nested = isinstance(value, Mapping | tuple | list)
    return fetched(value) if is_nested else np.asarray(value).view(FetchedArray)

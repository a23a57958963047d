"""A curve that grows for as long as training goes, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Curve:
    """Points of a metric by step; when there are too many, every second one goes.

    What is kept are points as they came, evenly spread: a mean of several would show less noise
    than there was. A value that is not finite is left out.

    Arguments:
      max_points: how many points are kept at most.

    >>> curve = Curve(max_points=4)
    >>> for step in range(10):
    ...     curve.add(step, step / 2)
    >>> curve.x, curve.y
    ([0, 4, 8], [0.0, 2.0, 4.0])
    """

    def __init__(self, max_points: int = 2000) -> None:
        self.x: list[float] = []
        self.y: list[float] = []
        self._max_points = max_points
        self._stride = 1
        self._num_skipped = 0

    def add(self, x: float, y: float) -> None:
        """Add a point to the right of the others."""
        if not math.isfinite(y):
            return
        if self.x and self._num_skipped + 1 < self._stride:
            self._num_skipped += 1
            return
        self._num_skipped = 0
        self.x.append(x)
        self.y.append(y)
        if len(self.x) > self._max_points:
            # One is left over at the end; it counts as skipped where it is not kept.
            self._num_skipped = self._stride * ((len(self.x) - 1) % 2)
            self.x, self.y = self.x[::2], self.y[::2]
            self._stride *= 2

    def cut(self, x: float) -> None:
        """Forget the points to the right of `x`."""
        count = sum(1 for each in self.x if each <= x)
        if count < len(self.x):
            del self.x[count:], self.y[count:]
            self._num_skipped = 0

    def get_state(self) -> dict[str, Any]:
        """Return what `set_state` needs, as JSON has it."""
        return {
            "x": list(self.x),
            "y": list(self.y),
            "stride": self._stride,
            "num_skipped": self._num_skipped,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.x, self.y = list(state["x"]), list(state["y"])
        self._stride, self._num_skipped = int(state["stride"]), int(state["num_skipped"])


def smoothed(values: Sequence[float], width: float) -> np.ndarray:
    """Return values smoothed by a Gaussian of standard deviation `width` points, `[N]`.

    It lags behind nowhere, as an exponential mean would. Near the ends the mean is over what there
    is on both sides.

    >>> smoothed([0.0, 0.0, 1.0, 0.0, 0.0], 0.5).round(2).tolist()
    [0.0, 0.11, 0.79, 0.11, 0.0]
    """
    points = np.asarray(values, float)
    if not points.size:
        return points
    radius = min(max(math.ceil(3 * width), 1), len(points) - 1)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / max(width, 1e-3)) ** 2)
    inside = slice(radius, radius + len(points))
    sums = np.convolve(points, kernel)[inside]
    return sums / np.convolve(np.ones_like(points), kernel)[inside]

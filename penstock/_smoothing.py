"""Noisy points made a smooth curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def smooth(values: Sequence[float], width: float) -> np.ndarray:
    """Return values smoothed by a Gaussian of standard deviation `width` points, `[N]`.

    It lags behind nowhere, as an exponential mean would. Near the ends the mean is over what there
    is on both sides.

    >>> smooth([0.0, 0.0, 1.0, 0.0, 0.0], 0.5).round(2).tolist()
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
    # At the ends fewer points count, and the weights that there are add up to one.
    return sums / np.convolve(np.ones_like(points), kernel)[inside]

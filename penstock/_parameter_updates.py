"""What a step did to each parameter: the sizes of its gradient and of its update."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from penstock._parameter_names import Path, spell

NUM_BINS = 30


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """How the finite values of an array are distributed, in bins of equal width.

    Attributes:
      low, high: the least and the greatest finite value; 0 where there is none.
      counts: how many values each bin has, `[30]`.
    """

    low: float
    high: float
    counts: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """What a step did to one parameter; norms are Euclidean, over all its elements.

    Attributes:
      parameter_norm: of its value before the step.
      gradient_norm: of the gradient of the mean loss, regularizers in it, before the optimizer.
      update_norm: of what the step adds, learning rates in it.
      gradient: the gradient's values.
      update: the values that the step adds.

    >>> counts = np.zeros(30)
    >>> values = Histogram(low=0.0, high=0.5, counts=counts)
    >>> change = ParameterUpdate(2.0, 0.5, 0.01, gradient=values, update=values)
    >>> change.relative_update
    0.005
    """

    parameter_norm: float
    gradient_norm: float
    update_norm: float
    gradient: Histogram
    update: Histogram

    @property
    def relative_update(self) -> float:
        """The update's norm over the parameter's, 0 for a parameter of zeros."""
        return self.update_norm / self.parameter_norm if self.parameter_norm else 0.0


Updates = dict[str, Any]
"""A `ParameterUpdate` for each trained parameter, by its name; by objective, where there are
several."""


class Statistics(NamedTuple):
    """The sizes on the devices, of N parameters in the order of their paths.

    Norms `[3, N]` are of values, gradients and updates; ranges `[2, N]` and histograms
    `[2, N, 30]` of gradients and updates.
    """

    norms: jax.Array
    lows: jax.Array
    highs: jax.Array
    counts: jax.Array


def describe_updates(
    paths: Mapping[str, Sequence[Path]], objective: str, sizes: Any
) -> dict[str, ParameterUpdate]:
    """Return what a step did to each of an objective's parameters, from sizes on the host."""
    updates: dict[str, ParameterUpdate] = {}
    for k, path in enumerate(paths[objective]):
        histograms = [
            Histogram(float(sizes.lows[i, k]), float(sizes.highs[i, k]), sizes.counts[i, k])
            for i in range(2)
        ]
        norms = [float(norm) for norm in sizes.norms[:, k]]
        updates[spell(path)] = ParameterUpdate(*norms, *histograms)  # pyright: ignore
    return updates


def add_norms(updates: Mapping[str, ParameterUpdate]) -> dict[str, float]:
    """Return the norms over all parameters together, by name."""
    names = ("parameter_norm", "gradient_norm", "update_norm")
    return {
        name: float(np.linalg.norm([getattr(update, name) for update in updates.values()]))
        for name in names
    }

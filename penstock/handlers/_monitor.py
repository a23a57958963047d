"""The metric by which handlers tell better from worse, and where they read it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from penstock._errors import UnknownNameError, listed, nearest
from penstock.events import BeginTraining, Training
from penstock.handlers._names import named

Mode = Literal["min", "max"]
"""Whether a smaller or a larger value is better."""


class Monitor:
    """A metric by name, and which of its values are better.

    Arguments:
      owner: the handler, for errors.
      name: the metric's name.
      mode: `"min"` or `"max"`.
      min_delta: by how much a value must be better to count.
      names: names for unnamed metrics.
    """

    def __init__(
        self, owner: str, name: str, mode: Mode, min_delta: float, names: Sequence[str]
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(
                f"{owner} got mode={mode!r}, expected 'min' or 'max'. It says whether a smaller or "
                f"a larger {name!r} is better."
            )
        if not min_delta >= 0:
            raise ValueError(
                f"{owner} got min_delta={min_delta!r}, expected 0 or more. It is by how much a "
                "value must be better to count."
            )
        self.name, self._owner, self._names = name, owner, names
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_delta = min_delta

    def check(self, trainer: Training) -> None:
        """Raise if the trainer's programs have no such metric; nothing is read for it.

        Raises:
          UnknownNameError: naming those there are.
        """
        parts = {
            name: each.build([0.0 if is_scalar else None for is_scalar in each.is_scalar])
            for name, each in trainer.builder.structures.items()
        }
        metrics = next(iter(parts.values())) if len(parts) == 1 else parts
        self._check(named(metrics, self._names))

    def value(self, metrics: Any) -> float:
        """Return the metric's value.

        Raises:
          UnknownNameError: there is no such metric.
        """
        values = named(metrics, self._names)
        self._check(values)
        return float(values[self.name])

    def is_better(self, value: float, best: float | None) -> bool:
        """Say whether a value is better than the best before; nan never is."""
        if math.isnan(value):
            return False
        return best is None or self._sign * value < self._sign * best - self._min_delta

    def _check(self, known: Iterable[str]) -> None:
        if self.name not in known:
            raise UnknownNameError(
                f"{self._owner} got monitor={self.name!r}, expected one of {listed(known)}. It is "
                "the metric to go by. Values of a tuple or list get their names from names=(...)."
                + nearest(self.name, known)
            )


def trainer_of(event: BeginTraining, owner: str) -> Training:
    """Return the trainer that an event brings.

    Raises:
      ValueError: it brings none.
    """
    if event.trainer is None:
        raise ValueError(
            f"{owner} got a BeginTraining without a trainer, expected one with it. It stops "
            "training, tests or saves with it. Let Trainer.train call the handler, or pass "
            "BeginTraining(..., trainer=trainer)."
        )
    return event.trainer

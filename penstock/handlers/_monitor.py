"""The metric by which handlers tell better from worse, and the trainer that they act on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from penstock._errors import UnknownNameError, check_known, check_number, listed, nearest
from penstock.events import BeginTraining, Metrics, Training
from penstock.handlers._arguments import as_names, name_scalars, name_values

Mode = Literal["min", "max"]
"""Whether a smaller or a larger value is better."""


class Monitor:
    """A metric by name, and which of its values are better; `owner` is for errors."""

    def __init__(
        self, owner: str, name: str, mode: Mode, min_delta: float, names: Sequence[str]
    ) -> None:
        why = f"It says whether a smaller or a larger {name!r} is better."
        check_known(f"{owner} got mode=", mode, get_args(Mode), why, ValueError)
        why = "It is by how much a value must be better to count."
        check_number(f"{owner} got min_delta=", min_delta, "[0, inf]", why)
        self.name, self._owner, self._names = name, owner, as_names(names)
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_delta = min_delta

    def check(self, trainer: Training) -> None:
        """Raise if the trainer's programs have no such metric; reads no metrics."""
        parts = {
            # No monitor can go by an array; its name is still known.
            name: part.build([0.0 if is_number else np.zeros(1) for is_number in part.are_numbers])
            for name, part in trainer.builder.programs.structures.items()
        }
        metrics = next(iter(parts.values())) if len(parts) == 1 else parts
        self._check(metrics)

    def get_value(self, metrics: Metrics) -> float:
        self._check(metrics)
        return float(name_scalars(metrics, self._names)[self.name])

    def is_better(self, value: float, best: float | None) -> bool:
        if math.isnan(value):
            return False
        # Signs turn both modes into a minimum.
        return best is None or self._sign * value < self._sign * best - self._min_delta

    def _check(self, metrics: Metrics) -> None:
        scalars = name_scalars(metrics, self._names)
        if self.name in scalars:
            return
        if self.name in name_values(metrics, self._names):
            hint = f"{self.name!r} is an array. Return a number too, such as its mean."
        elif isinstance(metrics, Mapping) and metrics.get(self.name, 0) is None:
            hint = f"{self.name!r} keeps rows, and an epoch keeps none: give a reader to test on."
        else:
            hint = "Values of a tuple or list get their names from names=(...)."
            hint += nearest(str(self.name), scalars)
        raise UnknownNameError(
            f"{self._owner} got monitor={self.name!r}, expected one of {listed(scalars)}. It is "
            f"the metric to go by. {hint}"
        )


def get_trainer(event: BeginTraining, owner: str) -> Training:
    if event.trainer is None:
        raise ValueError(
            f"{owner} got a BeginTraining without a trainer, expected one with it. It stops "
            "training, tests or saves with it. Let Trainer.train call the handler, or pass "
            "BeginTraining(..., trainer=trainer)."
        )
    return event.trainer

"""The metric by which handlers tell better from worse, and how long it has not become better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from penstock._batches import check_reader
from penstock._errors import UnknownNameError, listed, nearest
from penstock.events import BeginTraining, EndEpoch, HandlerState, Metrics, ReaderLike, Training
from penstock.handlers._arguments import (
    as_names,
    check_test,
    encode_json,
    is_number,
    name_scalars,
    name_values,
)

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
        if not isinstance(name, str):
            raise TypeError(
                f"{owner} got monitor={name!r}, expected the name of a metric. It is the metric to "
                "go by, such as 'loss'."
            )
        if mode not in ("min", "max"):
            raise ValueError(
                f"{owner} got mode={mode!r}, expected 'min' or 'max'. It says whether a smaller or "
                f"a larger {name!r} is better."
            )
        if not (is_number(min_delta) and min_delta >= 0):
            raise ValueError(
                f"{owner} got min_delta={min_delta!r}, expected 0 or more. It is by how much a "
                "value must be better to count."
            )
        self.name, self._owner, self._names = name, owner, as_names(names)
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_delta = min_delta

    def check(self, trainer: Training) -> None:
        """Raise if the trainer's programs have no such metric; reads no metrics.

        Raises:
          UnknownNameError: naming those there are.
        """
        parts = {
            # No monitor can go by an array; its name is still known.
            name: each.build([0.0 if is_number else np.zeros(1) for is_number in each.are_numbers])
            for name, each in trainer.builder.programs.structures.items()
        }
        metrics = next(iter(parts.values())) if len(parts) == 1 else parts
        self._check(metrics)

    def get_value(self, metrics: Metrics) -> float:
        """Return the metric's value.

        Raises:
          UnknownNameError: there is no such metric.
        """
        self._check(metrics)
        return float(name_scalars(metrics, self._names)[self.name])

    def is_better(self, value: float, best: float | None) -> bool:
        """Return whether a value is better than the best before; nan never is."""
        if math.isnan(value):
            return False
        # Signs turn both modes into a minimum.
        return best is None or self._sign * value < self._sign * best - self._min_delta

    def _check(self, metrics: Metrics) -> None:
        known = name_scalars(metrics, self._names)
        if self.name in known:
            return
        if self.name in name_values(metrics, self._names):
            hint = f"{self.name!r} is an array. Return a number too, such as its mean."
        else:
            hint = "Values of a tuple or list get their names from names=(...)."
            hint += nearest(self.name, known)
        raise UnknownNameError(
            f"{self._owner} got monitor={self.name!r}, expected one of {listed(known)}. It is the "
            f"metric to go by. {hint}"
        )


class Plateau:
    """Count epochs without a better value.

    Arguments:
      owner: the handler, for errors.
      monitor: the metric's name.
      patience: after how many epochs in a row `is_over`.
      min_delta: by how much a value must be better to count.
      mode: `"min"` or `"max"`.
      names: names for unnamed metrics.
      reader: test on it; without it the epoch's training metrics count.
      test: take the metrics it returns.
    """

    def __init__(
        self,
        owner: str,
        monitor: str,
        *,
        patience: int,
        min_delta: float,
        mode: Mode,
        names: Sequence[str],
        reader: ReaderLike | None,
        test: Callable[[], Metrics] | None,
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise ValueError(
                f"{owner} got patience={patience!r}, expected a positive integer. It is how many "
                "epochs in a row may pass without a better value."
            )
        if reader is not None and test is not None:
            raise ValueError(
                f"{owner} got reader and test, expected one of them. Either is where its values "
                "come from. Leave reader out where test reads one itself."
            )
        check_test(owner, test)
        if reader is not None:
            check_reader(reader, 1)
        self.monitor = Monitor(owner, monitor, mode, min_delta, names)
        self.patience = patience
        self.best: float | None = None
        self.num_bad_epochs = 0
        self._owner, self._reader, self._test = owner, reader, test

    def begin(self, event: BeginTraining) -> Training:
        """Check what can be checked now; return the trainer. A new run has no best value yet."""
        trainer = get_trainer(event, self._owner)
        if self._test is None:  # its metrics may be others than the program's
            self.monitor.check(trainer)
        # A resumed run goes on counting; another call of `train` too.
        if not event.global_step:
            self.best, self.num_bad_epochs = None, 0
        return trainer

    def update(self, event: EndEpoch, trainer: Training) -> bool:
        """Return whether an epoch's value is the best so far, and count the epoch.

        Waits for the device, and may test.
        """
        if self._test is not None:
            metrics = self._test()
        elif self._reader is not None:
            metrics = trainer.test(self._reader)
        else:
            metrics = event.metrics
        value = self.monitor.get_value(metrics)
        is_better = self.monitor.is_better(value, self.best)
        if is_better:
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        return is_better

    @property
    def is_over(self) -> bool:
        """Whether as many epochs as `patience` have passed."""
        return self.num_bad_epochs >= self.patience

    def describe(self) -> str:
        """Return which value was not beaten, and for how long, in words."""
        best = "nan" if self.best is None else f"{self.best:.6g}"
        epochs = f"{self.patience} epoch{'' if self.patience == 1 else 's'}"
        return f"{self.monitor.name} has not been better than {best} for {epochs}"

    @property
    def state(self) -> HandlerState:
        """Best value and count, as JSON holds them."""
        return {"best": encode_json(self.best), "num_bad_epochs": self.num_bad_epochs}

    @state.setter
    def state(self, state: HandlerState) -> None:
        self.best = None if state["best"] is None else float(state["best"])
        self.num_bad_epochs = int(state["num_bad_epochs"])


def get_trainer(event: BeginTraining, owner: str) -> Training:
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

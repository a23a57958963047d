"""How many epochs in a row a metric did not get better: what stops training, or slows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.events import BeginTraining, EndEpoch, Training
from penstock.handlers._json import encoded
from penstock.handlers._monitor import Mode, Monitor, trainer_of
from penstock.handlers._readings import as_names


class Plateau:
    """Count epochs without a better value.

    Arguments:
      owner: the handler, for errors.
      monitor: the metric's name.
      patience: after how many epochs in a row `is_over`.
      min_delta: by how much a value must be better to count.
      mode: `"min"` or `"max"`.
      names: names for unnamed metrics.
      reader: test on it; the epoch's training metrics count without.
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
        reader: Any,
        test: Callable[[], Any] | None,
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
        self.monitor = Monitor(owner, monitor, mode, min_delta, as_names(names))
        self.patience = patience
        self.best: float | None = None
        self.num_bad_epochs = 0
        self._owner, self._reader, self._test = owner, reader, test

    def begin(self, event: BeginTraining) -> Training:
        """Check what can be checked now; return the trainer. A run that begins forgets the last."""
        trainer = trainer_of(event, self._owner)
        if self._test is None:  # its metrics may be others than the program's
            self.monitor.check(trainer)
        if not event.global_step:
            self.best, self.num_bad_epochs = None, 0
        return trainer

    def value(self, event: EndEpoch, trainer: Training) -> float:
        """Return the monitored value of an epoch; waits for the device, and may test."""
        if self._test is not None:
            return self.monitor.value(self._test())
        if self._reader is not None:
            return self.monitor.value(trainer.test(self._reader))
        return self.monitor.value(event.metrics)

    def is_better(self, value: float) -> bool:
        """Say whether a value is better than all before, and count the epoch."""
        is_better = self.monitor.is_better(value, self.best)
        if is_better:
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        return is_better

    @property
    def is_over(self) -> bool:
        """Whether patience is at its end."""
        return self.num_bad_epochs >= self.patience

    @property
    def state(self) -> dict[str, Any]:
        """Where counting stands, as JSON holds it."""
        return {"best": encoded(self.best), "num_bad_epochs": self.num_bad_epochs}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self.best = None if state["best"] is None else float(state["best"])
        self.num_bad_epochs = int(state["num_bad_epochs"])

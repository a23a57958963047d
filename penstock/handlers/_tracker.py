"""The part of `WandB` and `MLflow` that does not depend on where a run is kept."""

from __future__ import annotations

import abc
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from penstock.events import BeginTraining, EndTraining, Event, HandlerState, Reason, Training
from penstock.handlers._arguments import check_test
from penstock.handlers._hyperparameters import (
    Hyperparameters,
    check_hyperparameters,
    list_hyperparameters,
)
from penstock.handlers._readings import Curves, Point
from penstock.handlers.evaluate import Test

_LOGGER = logging.getLogger("penstock")


class TrackedRun(Protocol):
    """A run that is open in a tracking service."""

    @property
    def id(self) -> str | None:
        """What the service knows the run by."""
        ...

    def log(self, num_steps: int, values: Mapping[str, float]) -> None:
        """Add points to curves; what the run has of the step already stays. May raise anything."""
        ...

    def close(self, reason: Reason) -> None:
        """Write what is left and end the run; raise where points are missing."""
        ...


class NoRun:
    """No run: only the first process has one."""

    id = None

    def log(self, num_steps: int, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self, reason: Reason) -> None:
        """Do nothing."""


class Tracker(abc.ABC):
    """Write the curves and hyperparameters of training to a run of a tracking service.

    The run is opened at the first event after `BeginTraining`, when the state of a resumed
    checkpoint, with the run's id, is there. What fails later is warned of once, and training goes
    on; at the end it is an error.

    Arguments:
      every_steps: the interval of steps; 0 or less for none.
      names: names for unnamed metrics.
      test: whose results get points too.
      hyperparameters: the user's own.
    """

    def __init__(
        self,
        every_steps: int,
        names: Sequence[str],
        test: Test | None,
        hyperparameters: Mapping[str, Any] | None,
    ) -> None:
        self._owner = type(self).__name__
        check_test(self._owner, test)
        self._hyperparameters = check_hyperparameters(self._owner, hyperparameters)
        self._curves = Curves(every_steps, names, test)
        self._run_id: str | None = None
        self._trainer: Training | None = None
        self._run: TrackedRun | None = None
        self._is_begun = self._has_failed = False

    @abc.abstractmethod
    def _load(self) -> None:
        """Import the service's package."""

    @abc.abstractmethod
    def _open(self, run_id: str | None, hyperparameters: Hyperparameters) -> TrackedRun:
        """Return a new run, or the one of that id to go on with."""

    def __call__(self, event: Event) -> None:
        """Log the points that are ready."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        elif isinstance(event, EndTraining):
            self._write(self._curves(event))
            self._end(event)
        elif self._is_begun:
            self._open_once()
            self._write(self._curves(event))

    def _begin(self, event: BeginTraining) -> None:
        if not jax.process_index():
            self._load()
        if not event.global_step:
            self._run_id = None  # a new training is a new run
        self._trainer, self._run = event.trainer, None
        self._is_begun, self._has_failed = True, False
        self._curves(event)

    def _open_once(self) -> TrackedRun:
        if self._run is None:
            if jax.process_index():
                self._run = NoRun()
            else:
                said = list_hyperparameters(self._hyperparameters, self._trainer)
                self._run = self._open(self._run_id, said)
                self._run_id = self._run.id
        return self._run

    def _write(self, points: Sequence[Point]) -> None:
        if any(point.kind == "test" for point in points):
            # Services take steps in their order, and a step before the test may still be held.
            points = [*self._curves.take(), *points]
        for point in sorted(points, key=lambda point: point.num_steps):
            values = {f"{point.kind}/{name}": value for name, value in point.values.items()}
            try:
                if self._run is not None and values:
                    self._run.log(point.num_steps, values)
            except Exception as error:
                if not self._has_failed:  # said once
                    _LOGGER.warning("%s Training goes on.", self._explain(error))
                self._has_failed = True

    def _end(self, event: EndTraining) -> None:
        run, self._run = self._run, None
        self._is_begun, self._trainer = False, None
        try:
            if run is not None:
                run.close(event.reason)
        except Exception as error:
            # The error that ended training is the one to see.
            if event.error is None:
                raise OSError(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        return (
            f"{self._owner} got {type(error).__name__} for the run {self._run_id!r} ({error}), "
            "expected that it can be written. Its curves have gaps. See to the server, or to the "
            "folder."
        )

    def get_state(self) -> HandlerState:
        """Return the run's id for a checkpoint, after logging the points that are due."""
        if self._is_begun:
            self._open_once()
            self._write(self._curves.take())
        return {"run_id": self._run_id}

    def set_state(self, state: HandlerState) -> None:
        """Continue the run whose id is in a checkpoint."""
        self._run_id = state["run_id"]

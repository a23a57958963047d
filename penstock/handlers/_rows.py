"""What a log has a row for, and how a run that is resumed goes on with its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.events import BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers._readings import Readings, as_names
from penstock.handlers._tests import Test
from penstock.handlers.evaluate import Evaluate

COLUMNS = ("kind", "epoch", "step", "global_step", "seconds", "examples")

Row = dict[str, Any]


def is_before(row: Mapping[str, Any], event: BeginTraining) -> bool:
    """Say whether a row belongs to what was trained before `event`, and is not trained again."""
    epoch, global_step = int(row["epoch"]), int(row["global_step"])
    if row["kind"] == "epoch":
        return epoch < event.epoch
    # A step's number is that of the step itself, a test's that of the steps done before it.
    return global_step < event.global_step + (row["kind"] == "test")


class Rows:
    """Make rows of events.

    Arguments:
      every_steps: the interval of rows for steps; 0 or less for none.
      names: names for unnamed metrics.
      pick: makes a dict by name of metrics and names.
      test: whose results get rows too.
    """

    def __init__(
        self,
        every_steps: int,
        names: Sequence[str],
        pick: Callable[[Any, Sequence[str]], Mapping[str, Any]],
        test: Test | None,
    ) -> None:
        self._every_steps, self._names = every_steps, as_names(names)
        self._pick, self._test = pick, test
        self._readings = Readings(every_steps)
        self._base = (0.0, 0)  # seconds and examples before this call of `train`
        self._start: float | None = None
        self._place = (0, 0)  # epoch and step
        self._global_step = 0
        self._tested = -1

    def begin(self, event: BeginTraining, kept: Sequence[Mapping[str, Any]]) -> None:
        """Begin, or go on counting after the rows that were kept."""
        if not event.global_step:
            self._base = (0.0, 0)
        elif self._global_step == event.global_step:
            self._base = self._counts()
        else:
            last = kept[-1] if kept else {"seconds": 0.0, "examples": 0}
            self._base = float(last["seconds"]), int(last["examples"])
        tested = [int(row["global_step"]) for row in kept if row["kind"] == "test"]
        self._tested = max(tested, default=-1)
        self._global_step, self._start = event.global_step, time.monotonic()
        self._readings(event)

    def __call__(self, event: Any) -> list[Row]:
        """Return the rows to write at an event that is not `BeginTraining`."""
        reading = self._readings(event)
        rows = [] if reading is None else [self._step_row(reading)]
        match event:
            case EndStep():
                self._place = (event.epoch, event.step)
                self._global_step = event.global_step + 1
            case EndEpoch():
                numbers = (event.epoch, event.num_steps, event.global_step)
                rows.append(self._row("epoch", numbers, self._counts()[1], event.metrics))
        rows += self._test_rows(event)
        if isinstance(event, EndTraining):
            self._base, self._start = self._counts(), None
            self._readings = Readings(self._every_steps)
        return rows

    def take(self) -> list[Row]:
        """Return at once the rows that would come after the next launch."""
        reading = self._readings.take()
        return [] if reading is None else [self._step_row(reading)]

    @property
    def state(self) -> dict[str, Any]:
        """Where counting stands, for a checkpoint."""
        seconds, examples = self._counts()
        return {"global_step": self._global_step, "seconds": seconds, "examples": examples}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self._readings = Readings(self._every_steps)
        if self._start is not None:  # BeginTraining was there already
            self._start = time.monotonic()
        self._global_step = int(state["global_step"])
        self._base = float(state["seconds"]), int(state["examples"])

    def _counts(self) -> tuple[float, int]:
        """Return seconds and examples of the run so far."""
        seconds = 0.0 if self._start is None else time.monotonic() - self._start
        return self._base[0] + seconds, self._base[1] + self._readings.num_examples

    def _step_row(self, reading: Any) -> Row:
        numbers = (reading.epoch, reading.step, reading.global_step)
        row = self._row("step", numbers, self._base[1] + reading.num_examples, reading.metrics)
        return {**reading.rates, **row}

    def _test_rows(self, event: Any) -> list[Row]:
        if isinstance(self._test, Evaluate):
            results = self._test.results
        elif self._test is not None and isinstance(event, EndEpoch):
            results = [(event.global_step, self._test())]
        else:
            results = []
        # Of what has no row yet: a resumed run may test again where it was broken off.
        if not results or results[-1][0] <= self._tested:
            return []
        examples = self._counts()[1]
        rows = [
            self._row("test", (*self._place, global_step), examples, metrics)
            for global_step, metrics in results
            if global_step > self._tested
        ]
        self._tested = results[-1][0]
        return rows

    def _row(self, kind: str, numbers: tuple[int, ...], examples: int, metrics: Any) -> Row:
        row = {"kind": kind, "epoch": numbers[0], "step": numbers[1], "global_step": numbers[2]}
        row |= {"seconds": round(self._counts()[0], 6), "examples": examples}
        for name, value in self._pick(metrics, self._names).items():
            row[f"metric {name}" if name in COLUMNS else name] = value
        return row

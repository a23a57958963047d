"""What a page tells of a run over time: where its time went, its curves, epochs and tests."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock import events
from penstock._json_values import encode_json
from penstock.handlers._readings import Point, StepClock
from penstock.handlers.figures import LARGEST_DRAWN, CurveSet

_SECONDS: Sequence[str] = ("steps", "data_wait", "measure", "compile", "between")


class RunTimes:
    """Count seconds of `steps`, of `data_wait` and `measure` in them, `compile`, `between` them.

    What is measured are gradients and updates, see `Gradients`; between steps are tests and saving.
    Call it with every event, and `begin` to go on from the seconds of a run.

    Attributes:
      epoch_secs: of the last epoch, its compiles included, tests and saving in it not.
    """

    def __init__(self) -> None:
        self.begin({})
        self._clock = StepClock()
        self._marks = (0.0,) * 4
        self._measured = self.epoch_secs = 0.0
        self._trainer: events.Training | None = None
        self._is_in_epoch = False

    def begin(self, secs: Mapping[str, float]) -> None:
        """Go on from seconds by name."""
        self.secs = {name: float(secs.get(name, 0.0)) for name in _SECONDS}

    def __call__(self, event: events.Event) -> None:
        """Count the seconds since the last event that ends a part."""
        self._clock(event)
        match event:
            case events.EndStep():
                self._measured += event.measure_secs
            case events.BeginTraining():
                self._trainer, self._is_in_epoch, self._measured = event.trainer, False, 0.0
                self._marks = self._read_marks()
            case events.BeginEpoch():
                self._count()
                self._is_in_epoch = True
            case events.EndEpoch():
                self._count(event.data_wait)
                self._is_in_epoch = False
            case events.EndTraining():
                self._count()
                self._trainer = None

    def _count(self, data_wait: float | None = None) -> None:
        marks = self._read_marks()
        passed = [mark - before for mark, before in zip(marks, self._marks, strict=True)]
        secs, stepping, launching, compiling = passed
        measured, self._marks, self._measured = self._measured, marks, 0.0
        if self._is_in_epoch:
            self.epoch_secs = stepping + launching
        else:
            stepping = 0.0
        waited = stepping * (data_wait or 0.0)
        self.secs["steps"] += stepping - waited
        self.secs["data_wait"] += waited
        self.secs["measure"] += measured
        self.secs["compile"] += compiling
        self.secs["between"] += max(secs - stepping - measured - compiling, 0.0)

    def _read_marks(self) -> tuple[float, ...]:
        programs = None if self._trainer is None else self._trainer.builder.programs
        compiled = 0.0 if programs is None else programs.compile_time.secs
        return time.monotonic(), self._clock.now(), self._clock.launch_secs, compiled


Values = dict[str, float]


class Epoch(NamedTuple):
    """An epoch that ended, its number counted from 0; `num_steps` were done by then in all."""

    number: int
    num_steps: int
    num_examples: int
    secs: float
    data_wait: float | None
    values: Values


class History:
    """Keep curves, epochs and tests of a run; what is kept of curves is bounded, see `Curve`."""

    def __init__(self) -> None:
        self.curves = CurveSet()
        self.epochs: list[Epoch] = []
        self.tests: list[tuple[int, Values]] = []
        self.num_left_out = 0
        self.began = ""

    def begin(self, event: events.BeginTraining) -> None:
        """Forget what is of another run, or of steps that are made again."""
        step = event.global_step
        if not step or not self.began:
            self.__init__()
            self.began = now()
        self.curves.cut(step)
        self.epochs = [epoch for epoch in self.epochs if epoch.num_steps <= step]
        self.tests = [test for test in self.tests if test[0] <= step]

    def add(self, event: events.Event, points: Sequence[Point], epoch_secs: float) -> None:
        """Add an event, the points that were ready at it, and how long the last epoch took."""
        self.add_points(points)
        if isinstance(event, events.EndEpoch):
            values = next((dict(p.values) for p in points if p.kind == "epoch"), {})
            counts = event.epoch, event.global_step, event.num_examples
            self.epochs.append(Epoch(*counts, round(epoch_secs, 3), event.data_wait, values))

    def add_points(self, points: Sequence[Point]) -> None:
        """Add points to the curves."""
        for point in points:
            # The means of an epoch are in its row.
            if point.kind == "epoch":
                continue
            if point.kind == "test":
                self.tests.append((point.num_steps, dict(point.values)))
            part = "test" if point.kind == "test" else "train"
            for name, value in point.values.items():
                if name != "data_wait":  # it is in the epoch's row too
                    self.num_left_out += not abs(value) <= LARGEST_DRAWN
                    self.curves.add(part, name, point.num_steps, value)

    def get_state(self) -> events.HandlerState:
        """Return everything as JSON holds it."""
        return {
            "curves": self.curves.get_state(),
            "epochs": encode_json(self.epochs),
            "tests": encode_json(self.tests),
            "num_left_out": self.num_left_out,
            "began": self.began,
        }

    def set_state(self, state: events.HandlerState) -> None:
        """Go on from a state."""
        self.curves.set_state(state["curves"])
        self.epochs = [Epoch._make([*counts, _read(values)]) for *counts, values in state["epochs"]]
        self.tests = [(int(step), _read(values)) for step, values in state["tests"]]
        self.num_left_out, self.began = int(state["num_left_out"]), str(state["began"])


def now() -> str:
    """Return the time as a page says it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read(values: dict[str, float | str]) -> Values:
    # What is not finite is text in JSON.
    return {name: float(value) for name, value in values.items()}

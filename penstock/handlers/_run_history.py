"""What a page tells of a run over time: its curves, epochs and tests, in the state of a handler."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.events import BeginEpoch, BeginTraining, EndEpoch, Event, HandlerState
from penstock.handlers._curves import Point
from penstock.handlers._metric_names import encode_json
from penstock.handlers.figures import Curve

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
    """Keep curves, epochs and tests; what is kept of curves is bounded, see `Curve`.

    Attributes:
      curves: by `train` and `test`, then by name.
      epochs: the epochs that ended.
      tests: steps done and results.
      num_left_out: values of curves that were not finite.
      began: when the run began, of a resumed one its first part.
    """

    def __init__(self) -> None:
        self.curves: dict[str, dict[str, Curve]] = {"train": {}, "test": {}}
        self.epochs: list[Epoch] = []
        self.tests: list[tuple[int, Values]] = []
        self.num_left_out = 0
        self.began = ""
        self._epoch_start = 0.0

    def begin(self, event: BeginTraining) -> None:
        """Forget what is of another run, or of steps that are made again."""
        step = event.global_step
        if not step or not self.began:
            self.__init__()
            self.began = now()
        for curve in (each for part in self.curves.values() for each in part.values()):
            curve.cut(step)
        self.epochs = [each for each in self.epochs if each.num_steps <= step]
        self.tests = [each for each in self.tests if each[0] <= step]

    def add(self, event: Event, points: Sequence[Point]) -> None:
        """Add an event and the points that were ready at it."""
        self.add_points(points)
        match event:
            case BeginEpoch():
                self._epoch_start = time.monotonic()
            case EndEpoch():
                values = next((dict(p.values) for p in points if p.kind == "epoch"), {})
                secs = time.monotonic() - self._epoch_start
                counts = event.epoch, event.global_step, event.num_examples
                self.epochs.append(Epoch(*counts, round(secs, 3), event.data_wait, values))

    def add_points(self, points: Sequence[Point]) -> None:
        """Add points to the curves."""
        for point in points:
            # The means of an epoch are in its row.
            if point.kind == "epoch":
                continue
            if point.kind == "test":
                self.tests.append((point.num_steps, dict(point.values)))
            curves = self.curves["test" if point.kind == "test" else "train"]
            for name, value in point.values.items():
                if name != "data_wait":  # it is in the epoch's row too
                    self.num_left_out += not math.isfinite(value)
                    curves.setdefault(name, Curve()).add(point.num_steps, value)

    def get_state(self) -> HandlerState:
        """Return everything as JSON holds it."""
        return {
            "curves": {
                part: {name: curve.get_state() for name, curve in curves.items()}
                for part, curves in self.curves.items()
            },
            "epochs": encode_json(self.epochs),
            "tests": encode_json(self.tests),
            "num_left_out": self.num_left_out,
            "began": self.began,
        }

    def set_state(self, state: HandlerState) -> None:
        """Go on from a state."""
        for part, curves in self.curves.items():
            curves.clear()
            for name, points in state["curves"][part].items():
                curves[name] = Curve()
                curves[name].set_state(points)
        self.epochs = [Epoch._make([*counts, _read(values)]) for *counts, values in state["epochs"]]
        self.tests = [(int(step), _read(values)) for step, values in state["tests"]]
        self.num_left_out, self.began = int(state["num_left_out"]), str(state["began"])


def now() -> str:
    """Return the time as a page says it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read(values: dict[str, float | str]) -> Values:
    # What is not finite is text in JSON.
    return {name: float(value) for name, value in values.items()}

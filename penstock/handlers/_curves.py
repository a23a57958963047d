"""The points of a run's curves: what `TensorBoard`, `WandB` and `MLflow` draw alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from penstock._parameter_updates import ParameterUpdate
from penstock.events import BeginTraining, EndEpoch, Event
from penstock.handlers._metric_names import as_names, name_scalars
from penstock.handlers._readings import Reading, Readings, Speed
from penstock.handlers._test_results import Test, TestResults


class Point(NamedTuple):
    """Values of curves at the same step.

    Attributes:
      kind: what they are of: steps, means over an epoch, how fast it goes, sizes of gradients and
        updates, or tests.
      num_steps: steps done before.
      values: the values by name; the learning rate is one of a step's.
      updates: of each parameter, for points of that kind.
    """

    kind: Literal["train", "epoch", "speed", "updates", "test"]
    num_steps: int
    values: Mapping[str, float]
    updates: Mapping[str, ParameterUpdate] = MappingProxyType({})


class Curves:
    """Return the points that are ready at each event.

    Metrics are read one launch late, see `Readings`. The steps of the points of one kind grow; a
    step's point may come after that of a test behind it.

    Arguments:
      every_steps: the interval of steps; 0 or less for none.
      names: names for unnamed metrics.
      test: whose results get points too.
    """

    def __init__(self, every_steps: int, names: Sequence[str], test: Test | None) -> None:
        self._readings, self._speed = Readings(every_steps), Speed()
        self._names, self._tests = as_names(names), TestResults(test)

    def __call__(self, event: Event) -> list[Point]:
        """Return the points of steps, epochs and tests that are new at an event."""
        if isinstance(event, BeginTraining):
            self._tests.begin(event.global_step)
        self._speed(event)
        reading = self._readings(event)
        points = [] if reading is None else self._of_step(reading)
        if isinstance(event, EndEpoch):
            num_steps = event.global_step
            points.append(Point("epoch", num_steps, name_scalars(event.metrics, self._names)))
            if event.data_wait is not None:
                points.append(Point("speed", num_steps, {"data_wait": event.data_wait}))
        for num_steps, metrics in self._tests(event):
            points.append(Point("test", num_steps, name_scalars(metrics, self._names)))
        return points

    def take(self) -> list[Point]:
        """Return at once the points that would be ready after the next launch."""
        reading = self._readings.take()
        return [] if reading is None else self._of_step(reading)

    def _of_step(self, reading: Reading) -> list[Point]:
        values = {**reading.rates, **name_scalars(reading.metrics, self._names)}
        points = [Point("train", reading.global_step + 1, values)]
        if reading.norms:
            num_steps = reading.global_step + 1
            points.append(Point("updates", num_steps, reading.norms, reading.updates))
        lap = self._speed.end_lap()
        if lap is not None:
            speed = {"examples_per_sec": lap.num_examples / lap.secs}
            points.append(Point("speed", reading.global_step + 1, speed))
        return points

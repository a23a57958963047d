"""What handlers read of a run: steps at an interval, their speed, and the points of curves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Literal, NamedTuple

from penstock import events
from penstock._parameter_updates import ParameterUpdate, Updates, add_norms
from penstock.handlers._arguments import as_names, name_scalars
from penstock.handlers.evaluate import Test, TestResults


class Reading(NamedTuple):
    """A step's numbers and metrics; counts are since training began, this step included."""

    epoch: int
    step: int
    global_step: int
    num_steps: int
    num_examples: int
    metrics: events.Metrics
    rates: dict[str, float]
    norms: dict[str, float]
    updates: dict[str, ParameterUpdate]


class Readings:
    """Read every `every_steps`-th step's metrics, one launch late; other steps are only counted.

    Read at once they would be waited for while the device has nothing to do. What is held at the
    end of an epoch, or of training, is read then. Steps whose updates a handler asks for are read
    too; 0 or less reads nothing.
    """

    def __init__(self, every_steps: int) -> None:
        if isinstance(every_steps, bool) or not isinstance(every_steps, Integral):
            raise ValueError(
                f"every_steps got {every_steps!r}, expected an integer. It is how many steps lie "
                "between two readings; 0 reads none."
            )
        self._every_steps = int(every_steps)
        # Steps of one launch, each with the counts after it.
        self._held: list[tuple[events.EndStep, int, int]] = []
        self._is_launched = False  # whether another launch has begun since
        self.num_steps = self.num_examples = 0

    def __call__(self, event: events.Event) -> list[Reading]:
        ready: list[tuple[events.EndStep, int, int]] = []
        match event:
            case events.EndStep():
                self.num_steps += 1
                self.num_examples += event.num_examples
                if self._is_launched:
                    ready, self._held, self._is_launched = self._held, [], False
                every = self._every_steps
                if every > 0 and (event.has_updates or (event.global_step + 1) % every == 0):
                    self._held.append((event, self.num_steps, self.num_examples))
            case events.BeginStep():
                self._is_launched = True
            case events.BeginTraining():
                self.num_steps = self.num_examples = 0
                self._held = []
            case events.BeginEpoch():
                self._held = []
            case events.EndEpoch() | events.EndTraining():
                ready, self._held = self._held, []
        has_failed = isinstance(event, events.EndTraining) and event.error is not None
        return _read(ready, may_fail=has_failed)

    def take(self) -> list[Reading]:
        """Return at once the readings that would be ready after the next launch."""
        held, self._held = self._held, []
        return _read(held, may_fail=True)


def _read(held: Sequence[tuple[events.EndStep, int, int]], *, may_fail: bool) -> list[Reading]:
    readings: list[Reading] = []
    for event, num_steps, num_examples in held:
        try:
            metrics, rate, updates = event.metrics, event.learning_rate, event.updates
        except Exception:
            if may_fail:
                break  # the step itself failed, and its error is on its way to the caller
            raise
        numbers = (event.epoch, event.step, event.global_step, num_steps, num_examples)
        readings.append(Reading(*numbers, metrics, name_rates(rate), *_name_updates(updates)))
    return readings


def name_rates(rate: float | dict[str, float] | None) -> dict[str, float]:
    """Return what `EndStep.learning_rate` tells by name, one for each of several objectives."""
    if isinstance(rate, dict):
        return {f"learning_rate/{name}": value for name, value in rate.items()}
    return {} if rate is None else {"learning_rate": rate}


def _name_updates(updates: Updates | None) -> tuple[dict[str, float], dict[str, ParameterUpdate]]:
    """Return the norms over all parameters, and each update, by names of their own."""
    if updates is None:
        return {}, {}
    if not any(isinstance(value, dict) for value in updates.values()):
        return add_norms(updates), updates
    norms: dict[str, float] = {}
    named: dict[str, ParameterUpdate] = {}
    for objective, own in updates.items():
        norms |= {f"{name}/{objective}": norm for name, norm in add_norms(own).items()}
        # Two objectives may train the same parameter.
        named |= {f"{objective}/{name}" if name in named else name: own[name] for name in own}
    return norms, named


class Lap(NamedTuple):
    """A window of steps: its duration, and how much was launched in it."""

    secs: float
    num_steps: int
    num_examples: int


class StepClock:
    """A clock of steps: it stands still in compiles, in measuring, and while the trainer tests or
    saves for a handler.
    """

    def __init__(self) -> None:
        self.launch_secs = 0.0  # of compiles and measuring in launches
        self._secs_beside = 0.0
        self._trainer: events.Training | None = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.EndStep():
                self.launch_secs += event.compile_secs + event.measure_secs
            case events.BeginTraining():
                self._trainer = event.trainer
            case events.EndTraining():
                self._secs_beside, self._trainer = self._read_secs_beside(), None

    def now(self) -> float:
        return time.monotonic() - self.launch_secs - self._read_secs_beside()

    def _read_secs_beside(self) -> float:
        return self._secs_beside if self._trainer is None else self._trainer.secs_beside


class Speed:
    """Time windows of steps, without compiles, measuring, tests and the time between epochs."""

    def __init__(self) -> None:
        self._num_steps = self._num_examples = 0
        self._clock = StepClock()
        self._start: Lap | None = None
        self._paused: float | None = None

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.BeginTraining):
            self.__init__()
        self._clock(event)
        match event:
            case events.EndStep():
                self._num_steps += 1
                self._num_examples += event.num_examples
            # The second launch: the first one compiled.
            case events.BeginStep() if self._start is None and self._num_steps:
                self._start = self._now()
            case events.EndEpoch():
                self._paused = self._clock.now()
            case events.BeginEpoch() if self._start is not None and self._paused is not None:
                # Moved on by what lay between the epochs: checkpoints, a reader that begins.
                secs = self._start.secs + self._clock.now() - self._paused
                self._start, self._paused = self._start._replace(secs=secs), None

    def find_lap(self) -> Lap | None:
        """Return the window up to now, `None` without a step in it."""
        now, start = self._now(), self._start
        if start is None or now.num_steps == start.num_steps:
            return None
        secs = max(now.secs - start.secs, 1e-9)
        return Lap(secs, now.num_steps - start.num_steps, now.num_examples - start.num_examples)

    def end_lap(self) -> Lap | None:
        """Return the window that ends here, and begin the next."""
        lap, self._start = self.find_lap(), self._now()
        # At the end of an epoch, what was waited for is in the lap, and not between epochs.
        self._paused = None if self._paused is None else self._clock.now()
        return lap

    def _now(self) -> Lap:
        return Lap(self._clock.now(), self._num_steps, self._num_examples)


class Point(NamedTuple):
    """Values of curves by name after `num_steps` steps; `updates` are of each parameter."""

    kind: Literal["train", "epoch", "speed", "updates", "test"]
    num_steps: int
    values: Mapping[str, float]
    updates: Mapping[str, ParameterUpdate] = MappingProxyType({})


class Curves:
    """Return the points that are ready at each event; the arguments are those of `TensorBoard`.

    The steps of the points of one kind grow; a step's point may come after that of a test behind
    it.
    """

    def __init__(
        self, owner: str, every_steps: int, names: Sequence[str], test: Test | None
    ) -> None:
        self._readings, self._speed = Readings(every_steps), Speed()
        self._names, self._tests = as_names(names), TestResults(owner, test)

    def __call__(self, event: events.Event) -> list[Point]:
        if isinstance(event, events.BeginTraining):
            # A test that was broken off at this step is made again.
            self._tests.begin(event.global_step - 1, event.global_step)
        self._speed(event)
        points = self._of_steps(self._readings(event))
        if isinstance(event, events.EndEpoch):
            num_steps = event.global_step
            points.append(Point("epoch", num_steps, name_scalars(event.metrics, self._names)))
            if event.data_wait is not None:
                points.append(Point("speed", num_steps, {"data_wait": event.data_wait}))
        return [*points, *self._of_tests(self._tests(event))]

    def take(self) -> list[Point]:
        """Return at once the points that would be ready after the next launch."""
        return [*self._of_steps(self._readings.take()), *self._of_tests(self._tests())]

    def _of_tests(self, results: Sequence[tuple[int, events.Metrics]]) -> list[Point]:
        return [Point("test", step, name_scalars(m, self._names)) for step, m in results]

    def _of_steps(self, readings: Sequence[Reading]) -> list[Point]:
        points: list[Point] = []
        for reading in readings:
            # A program that returns its learning rate knows it better.
            values = {**reading.rates, **name_scalars(reading.metrics, self._names)}
            num_steps = reading.global_step + 1
            points.append(Point("train", num_steps, values))
            if reading.norms:
                points.append(Point("updates", num_steps, reading.norms, reading.updates))
        lap = self._speed.end_lap() if readings else None
        if lap is not None:
            speed = {"examples_per_sec": lap.num_examples / lap.secs}
            points.append(Point("speed", readings[-1].global_step + 1, speed))
        return points

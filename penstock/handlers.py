"""Event handlers for every training run; so far `Progress`, which shows how it goes.

They know the events and nothing else of penstock. Give them to `Trainer.train` alone or in a list.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndEpoch, EndStep, EndTraining

_LIVE_INTERVAL_SECS = 0.25
_LINES_INTERVAL_SECS = 5.0


class Progress:
    """Show how training goes: one live line on a terminal, plain lines elsewhere.

    The live line has epoch and step, the metrics, examples per second and the time left. Each epoch
    leaves a line with the means of its metrics. Where the output is no terminal, an epoch prints
    that line and one more every five seconds.

    Metrics are read four times a second at most, and from a step before the last launch: the
    device always has the next one to go on with.

    Arguments:
      names: names for the values of a program function that returns a tuple, a list or a single
        value; those beyond are called `metric_1` by their position. A dict brings its own names.
      test: called at the end of each epoch; what it returns is shown beside the epoch's metrics.
      file: where to write; standard output by default.

    >>> from penstock.events import BeginEpoch, BeginTraining, EndEpoch, EndTraining
    >>> progress = Progress(("loss", "accuracy"), test=lambda: (0.25, 0.5))
    >>> for event in [
    ...     BeginTraining(epoch=0, num_epochs=1, global_step=0),
    ...     BeginEpoch(epoch=0, global_step=0),
    ...     EndEpoch(epoch=0, global_step=8, read=lambda: (0.125, 0.75)),
    ...     EndTraining("completed"),
    ... ]:
    ...     progress(event)
    epoch 1/1  loss 0.1250 (test 0.2500)  accuracy 0.7500 (test 0.5000)
    """

    def __init__(
        self,
        names: Sequence[str] = ("loss",),
        *,
        test: Callable[[], Any] | None = None,
        file: TextIO | None = None,
    ) -> None:
        self._names = (names,) if isinstance(names, str) else tuple(names)
        self._test = test
        self._file = file
        self._display: _Display = _Nothing()
        self._pace = _Pace()
        self._values: dict[str, float] = {}
        self._held: EndStep | None = None
        self._is_held_ready = False
        self._next_refresh = 0.0

    def __call__(self, event: Any) -> None:
        """Take note of an event, and now and then show it."""
        match event:
            case EndStep():
                self._end_step(event)
            case BeginStep():
                self._pace.begin_launch()
                self._is_held_ready = self._held is not None
            case BeginTraining():
                self._display.close()
                self._display = _display(self._file or sys.stdout)
                self._pace = _Pace(first_epoch=event.epoch, num_epochs=event.num_epochs)
                self._values = {}
                self._next_refresh = time.monotonic() + self._display.interval_secs
            case BeginEpoch():
                self._begin_epoch(event)
            case EndEpoch():
                self._end_epoch(event)
            case EndTraining():
                self._held = None
                self._display.close()
                self._display = _Nothing()

    def _begin_epoch(self, event: BeginEpoch) -> None:
        self._pace.begin_epoch(event.epoch, event.num_steps)
        self._held = None
        self._display.wait(self._pace, _shown(self._values) or "  compiling")

    def _end_step(self, event: EndStep) -> None:
        self._pace.end_step(event.num_examples)
        if self._held is not None:
            if self._is_held_ready:
                self._values = _named(self._held.metrics, self._names)
                self._held = None
                self._display.update(self._pace, _shown(self._values))
        elif (now := time.monotonic()) >= self._next_refresh:
            self._next_refresh = now + self._display.interval_secs
            self._held, self._is_held_ready = event, False

    def _end_epoch(self, event: EndEpoch) -> None:
        self._held = None
        self._values = _named(event.metrics, self._names)
        self._pace.end_epoch()
        tested: dict[str, float] = {}
        if self._test is not None:
            self._display.wait(self._pace, "  testing")
            tested = _named(self._test(), self._names)
        self._display.end_epoch(self._pace, _shown(self._values, tested))


class _Pace:
    """Where training stands, how fast it is, and how long it will take.

    The first launch is left out of the rates, as it compiles.
    """

    def __init__(self, first_epoch: int = 0, num_epochs: int = 0) -> None:
        self.step = 0
        self.num_steps: int | None = None
        self._first_epoch = first_epoch
        self._num_epochs = num_epochs
        self._epoch = first_epoch
        self._num_examples = 0
        self._last_rate: float | None = None
        # Time, examples of this epoch and steps of all epochs, where counting began.
        self._epoch_start: tuple[float, int] | None = None
        self._start: tuple[float, int] | None = None
        self.total_steps = 0

    def begin_epoch(self, epoch: int, num_steps: int | None) -> None:
        self._epoch, self.step, self._num_examples = epoch, 0, 0
        self.num_steps = num_steps or self.num_steps
        self._epoch_start = (time.monotonic(), 0) if self._start else None

    def begin_launch(self) -> None:
        if self._epoch_start is None and self.step:
            now = time.monotonic()
            self._epoch_start = (now, self._num_examples)
            self._start = self._start or (now, self.total_steps)

    def end_step(self, num_examples: int) -> None:
        self.step += 1
        self.total_steps += 1
        self._num_examples += num_examples

    def end_epoch(self) -> None:
        self.num_steps = self.step
        self._last_rate = self.examples_per_sec
        self._epoch_start = None  # the test that may follow does not count
        self._start = self._start or (time.monotonic(), self.total_steps)

    @property
    def epoch(self) -> str:
        last = self._first_epoch + self._num_epochs
        return f"epoch {self._epoch + 1:{len(str(last))}}/{last}"

    @property
    def examples_per_sec(self) -> float | None:
        """The epoch's speed so far, or at its beginning that of the last one."""
        if self._epoch_start is None or self._num_examples <= self._epoch_start[1]:
            return self._last_rate
        secs = time.monotonic() - self._epoch_start[0]
        return (self._num_examples - self._epoch_start[1]) / max(secs, 1e-9)

    @property
    def secs_left(self) -> float | None:
        """The time left, epochs' tests included; None when unknown or nothing is left."""
        if self._start is None or self.all_steps is None:
            return None
        secs, num_steps = time.monotonic() - self._start[0], self.total_steps - self._start[1]
        steps_left = max(self.all_steps - self.total_steps, 0)
        return secs / num_steps * steps_left if num_steps > 0 and steps_left else None

    @property
    def all_steps(self) -> int | None:
        """The steps of all epochs together, if the length of one is known."""
        return None if self.num_steps is None else self._num_epochs * self.num_steps

    @property
    def steps(self) -> str:
        return f"{self.step}" if self.num_steps is None else f"{self.step}/{self.num_steps}"

    def rates(self) -> str:
        """Return the speed and the time left as text, each with two spaces before it."""
        speed, left = self.examples_per_sec, self.secs_left
        text = "" if speed is None else f"  {_short(speed)} ex/s"
        return text if left is None else f"{text}  {_duration(left)} left"


class _Display(Protocol):
    """Where progress is shown."""

    interval_secs: float

    def update(self, pace: _Pace, text: str) -> None: ...

    def wait(self, pace: _Pace, text: str) -> None: ...

    def end_epoch(self, pace: _Pace, text: str) -> None: ...

    def close(self) -> None: ...


class _Nothing:
    """Outside training nothing is shown."""

    interval_secs = 0.0

    def update(self, pace: _Pace, text: str) -> None:
        pass

    wait = end_epoch = update

    def close(self) -> None:
        pass


@dataclasses.dataclass
class _Lines:
    """One line a call, without control characters."""

    file: TextIO
    interval_secs: float = _LINES_INTERVAL_SECS

    def update(self, pace: _Pace, text: str) -> None:
        self._print(f"{pace.epoch}  step {pace.steps}{text}{pace.rates()}")

    def wait(self, pace: _Pace, text: str) -> None:
        pass

    def end_epoch(self, pace: _Pace, text: str) -> None:
        self._print(f"{pace.epoch}{text}{pace.rates()}")

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self.file, flush=True)


class _Live:
    """One line that changes in place, and above it one that stays for each epoch."""

    interval_secs = _LIVE_INTERVAL_SECS

    def __init__(self, file: TextIO) -> None:
        # Imported here: it takes 50 ms, and only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = BarColumn()
        self._progress = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            self._bar,
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(file=file),
            transient=True,  # the epochs' lines stay, the live one goes
        )
        self._task = self._progress.add_task("", total=None, text="", visible=False)
        self._progress.start()

    def update(self, pace: _Pace, text: str) -> None:
        text = f"{pace.steps}{text}{pace.rates()}"
        free = self._progress.console.width - len(f"- {pace.epoch}  {text}")
        self._bar.bar_width = min(max(free, 4), 20)
        self._progress.update(
            self._task,
            description=pace.epoch,
            total=pace.all_steps,
            completed=pace.total_steps,
            text=text,
            visible=True,
        )

    wait = update

    def end_epoch(self, pace: _Pace, text: str) -> None:
        self._progress.console.print(
            pace.epoch + text, soft_wrap=True, markup=False, highlight=False
        )

    def close(self) -> None:
        self._progress.stop()


def _display(file: TextIO) -> _Display:
    is_terminal = file.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return _Live(file) if is_terminal else _Lines(file)


def _named(metrics: Any, names: Sequence[str]) -> dict[str, float]:
    """Return the scalars of metrics by name; those of several objectives as `objective name`."""
    if isinstance(metrics, Mapping):
        named = {}
        for key, value in metrics.items():
            inner = isinstance(value, tuple | list | Mapping)
            parts = _named(value, names).items() if inner else [("", value)]
            named |= {f"{key} {name}".strip(): part for name, part in parts}
    elif isinstance(metrics, tuple | list):
        more = [f"metric_{i}" for i in range(len(names), len(metrics))]
        named = dict(zip([*names, *more], metrics, strict=False))
    else:
        named = {} if metrics is None else {names[0] if names else "loss": metrics}
    return {name: value for name, value in named.items() if isinstance(value, int | float)}


def _shown(values: Mapping[str, float], tested: Mapping[str, float] | None = None) -> str:
    """Return metrics as text, each with two spaces before it, with the test's in brackets."""
    tested = tested or {}
    parts = [
        f"  {name} {_number(value)}"
        + (f" (test {_number(tested[name])})" if name in tested else "")
        for name, value in values.items()
    ]
    others = [f"  test {name} {_number(tested[name])}" for name in tested if name not in values]
    return "".join(parts + others)


def _number(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.3e}"


def _short(count: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{suffix}"
    return f"{count:.3g}"


def _duration(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

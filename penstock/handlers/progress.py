"""`Progress`: a line that shows the progress of a run."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import jax

from penstock import events
from penstock._errors import check_int
from penstock._text_tables import wrap_parts
from penstock.handlers._arguments import as_names, check_file, name_scalars
from penstock.handlers._display import NOWHERE, CellOutput, choose_output, find_display
from penstock.handlers._readings import Speed, name_rates
from penstock.handlers.evaluate import Test, TestResults


class Progress:
    """Show progress: one live line on a terminal or in a notebook, plain lines elsewhere.

    The live line shows epoch and step, metrics, learning rate (if the optimizer's state holds it),
    examples per second, time left, the share of the last epoch spent waiting for the reader (from
    1 % on), and the memory in use on the first device (if the backend reports it). If it is too
    long, memory and waiting go first, then the learning rate, then metrics from the last one on.
    Each epoch leaves a line with the means of its metrics; plain output has one more every five
    seconds. Metrics are read at most four times a second.

    Arguments:
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function that returns metrics and is called at the
        end of each epoch. Its metrics are shown beside those of an epoch that it tested.
      stop_at: the step at which a `StopAt` in the same list ends training. Epochs, steps and time
        left then count to it.
      file: an open text file; standard output by default.

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
        test: Test | None = None,
        stop_at: int | None = None,
        file: TextIO | None = None,
    ) -> None:
        check_file("Progress", file)
        if stop_at is not None:
            check_int("stop_at", stop_at, 0)
        self._names = as_names(names)
        self._test, self._tests = test, TestResults("Progress", test)
        self._stop_at = stop_at
        self._file = file
        self._display: _Display = _Lines()  # to nowhere
        self._pace = _Pace()
        self._values: dict[str, float] = {}
        self._held: events.EndStep | None = None
        self._is_held_ready = False
        self._next_refresh = 0.0

    def __call__(self, event: events.Event) -> None:
        """Update the line, at most a few times a second."""
        # The end of an epoch counts when its metrics are there: reading them waits for its steps.
        if not isinstance(event, events.EndEpoch):
            self._pace(event)
        match event:
            case events.EndStep():
                self._end_step(event)
            case events.BeginStep():
                # Once the next launch is on its way, reading the one before holds nothing up.
                self._is_held_ready = self._held is not None
            case events.BeginTraining():
                self._display.close()
                self._display = _make_display(choose_output(self._file))
                device = _get_device(event)
                self._pace = _Pace(event.epoch, event.num_epochs, device, self._stop_at)
                self._pace(event)
                self._tests.begin(event.global_step - 1)
                self._values = {}
                self._next_refresh = time.monotonic() + self._display.interval_secs
            case events.BeginEpoch():
                self._held = None
                self._display.wait(self._pace, _format_metrics(self._values) or ["  compiling"])
            case events.EndEpoch():
                self._end_epoch(event)
            case events.EndTraining():
                self._held = None
                self._display.close()
                self._display = _Lines()

    def _end_step(self, event: events.EndStep) -> None:
        if self._held is not None:
            # Read before the next launch, it would hold up the device.
            if self._is_held_ready:
                self._values = name_scalars(self._held.metrics, self._names)
                rates = [
                    f"  {name.replace('learning_rate', 'lr')} {rate:.3g}"
                    for name, rate in name_rates(self._held.learning_rate).items()
                ]
                self._held = None
                self._display.update(self._pace, _format_metrics(self._values) + rates)
        elif (now := time.monotonic()) >= self._next_refresh:
            self._next_refresh = now + self._display.interval_secs
            self._held, self._is_held_ready = event, False

    def _end_epoch(self, event: events.EndEpoch) -> None:
        self._held = None
        self._values = name_scalars(event.metrics, self._names)
        self._pace(event)
        results: dict[str, float] = {}
        if self._test is not None:
            # A test may take minutes, in which no step would show a sign of life.
            self._display.wait(self._pace, ["  testing"])
            tests = dict(self._tests.ask(event))
            results = name_scalars(tests.get(event.global_step, {}), self._names)
        self._display.end_epoch(self._pace, _format_metrics(self._values, results))


class _Pace:
    """Where training stands, how fast it is, how long it will take, and what memory it needs.

    Compiles are left out of the rates; measuring updates is part of the time left alone. `stop_at`
    counts the steps of all calls of `train`.
    """

    def __init__(
        self,
        first_epoch: int = 0,
        num_epochs: int = 0,
        device: Any = None,
        stop_at: int | None = None,
    ) -> None:
        self.step = self.total_steps = 0
        # Of a whole epoch, whether or not this one ends before.
        self._epoch_steps: int | None = None
        self._end_epoch = first_epoch + num_epochs
        self._stop_at = stop_at
        self._steps_before = 0
        self._epoch = first_epoch
        self._speed, self._last_rate = Speed(), None
        self._device = device
        self.data_wait: float | None = None
        # Time and steps of all epochs, where counting began.
        self._start: tuple[float, int] | None = None
        self._compile_secs = 0.0

    def __call__(self, event: events.Event) -> None:
        self._speed(event)
        match event:
            case events.EndStep():
                self._compile_secs += event.compile_secs
                self.step += 1
                self.total_steps += 1
            # From the second launch on: the first compiles.
            case events.BeginStep() if self._start is None and self.step:
                self._start = (self._run_secs(), self.total_steps)
            case events.BeginEpoch():
                self._epoch, self.step = event.epoch, event.first_step
                self._steps_before = event.global_step - event.first_step
                # A reader without a length has, after one epoch, that of the last.
                self._epoch_steps = event.num_steps or self._epoch_steps
            case events.EndEpoch():
                self.data_wait = event.data_wait
                # Counted, where the reader did not say: the next epoch's bar has an end.
                self._epoch_steps = self.step
                self._last_rate = self.examples_per_sec
                self._speed.end_lap()
                self._start = self._start or (self._run_secs(), self.total_steps)

    def _run_secs(self) -> float:
        """Return a clock that stands still in compiles."""
        return time.monotonic() - self._compile_secs

    @property
    def epoch(self) -> str:
        last = self._last_epoch
        return f"epoch {self._epoch + 1:{len(str(last))}}/{last}"

    @property
    def _last_epoch(self) -> int:
        """The number of the last epoch that will run, from 1."""
        if self._stop_at is None or not self._epoch_steps:
            return self._end_epoch
        num_epochs = -(-(self._stop_at - self._steps_before) // self._epoch_steps)
        return min(self._end_epoch, self._epoch + max(num_epochs, 1))

    @property
    def num_steps(self) -> int | None:
        """The steps that will run of this epoch, as far as its length is known."""
        if self._epoch_steps is None or self._stop_at is None:
            return self._epoch_steps
        return max(min(self._epoch_steps, self._stop_at - self._steps_before), self.step)

    @property
    def examples_per_sec(self) -> float | None:
        """The epoch's speed so far, or at its beginning that of the last one."""
        lap = self._speed.find_lap()
        return self._last_rate if lap is None else lap.num_examples / lap.secs

    @property
    def secs_left(self) -> float | None:
        """The time left, epochs' tests included; None when unknown or nothing is left."""
        if self._start is None or (all_steps := self.all_steps) is None:
            return None
        # Over all epochs, tests included: they take their time in those to come too.
        secs, num_steps = self._run_secs() - self._start[0], self.total_steps - self._start[1]
        steps_left = max(all_steps - self.total_steps, 0)
        return secs / num_steps * steps_left if num_steps > 0 and steps_left else None

    @property
    def all_steps(self) -> int | None:
        """The steps done and to come of all epochs, if the length of one is known."""
        if self._epoch_steps is None:
            return None
        left = (self._end_epoch - self._epoch) * self._epoch_steps - self.step
        if self._stop_at is not None:
            left = min(left, self._stop_at - self._steps_before - self.step)
        return self.total_steps + max(left, 0)

    @property
    def steps(self) -> str:
        return f"{self.step}" if self.num_steps is None else f"{self.step}/{self.num_steps}"

    @property
    def wait(self) -> str:
        """The share of its time that the last epoch waited for the reader, from 1 % on."""
        return f"  {self.data_wait:.0%} data wait" if (self.data_wait or 0) >= 0.01 else ""

    def rates(self) -> list[str]:
        speed, left = self.examples_per_sec, self.secs_left
        return [
            "" if speed is None else f"  {_format_count(speed)} ex/s",
            "" if left is None else f"  {_format_duration(left)} left",
        ]

    def loads(self) -> list[str]:
        return [self.wait, _format_memory(self._device)]


def _format_memory(device: Any) -> str:
    stats = None if device is None else device.memory_stats()
    # CPU devices have none, and some backends do not count it.
    if not stats or "bytes_in_use" not in stats:
        return ""
    limit = f"/{stats['bytes_limit'] / 2**30:.1f}" if "bytes_limit" in stats else ""
    return f"  {stats['bytes_in_use'] / 2**30:.1f}{limit} GiB"


def _format_count(count: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{suffix}"
    return f"{count:.3g}"


def _format_duration(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


_LIVE_INTERVAL_SECS = 0.25
_LINES_INTERVAL_SECS = 5.0
_BAR_CHARS = (4, 20)  # at least and at most


@dataclasses.dataclass
class _Lines:
    """One line a call, without control characters; each part has two spaces before it."""

    file: TextIO = NOWHERE
    interval_secs: float = _LINES_INTERVAL_SECS

    def update(self, pace: _Pace, parts: Sequence[str]) -> None:
        self._print(_join(f"{pace.epoch}  step {pace.steps}", parts, pace.rates(), pace.loads()))

    def wait(self, pace: _Pace, parts: Sequence[str]) -> None:
        pass

    def end_epoch(self, pace: _Pace, parts: Sequence[str]) -> None:
        self._print(_join(pace.epoch, parts, pace.rates(), pace.loads()))

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self.file, flush=True)


class _Live:
    """A line that changes in place, below a line for each epoch that is over."""

    interval_secs = _LIVE_INTERVAL_SECS

    def __init__(self, file: TextIO) -> None:
        # Imported here: it takes 50 ms, and only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console(file=file)
        self._bar = BarColumn()
        columns = [
            SpinnerColumn("line" if console.options.ascii_only else "dots"),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            self._bar,
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
        ]
        # The epochs' lines stay, the live one goes.
        self._progress = RichProgress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=None, text="", visible=False)
        self._progress.start()

    def update(self, pace: _Pace, parts: Sequence[str]) -> None:
        free = self._progress.console.width - len(f"- {pace.epoch}  ") - _BAR_CHARS[0]
        # A line wider than the terminal would wrap, and could not be replaced in place.
        text = _fit(pace.steps, parts, pace.rates(), pace.loads(), free)
        self._bar.bar_width = min(max(_BAR_CHARS[0] + free - len(text), 1), _BAR_CHARS[1])
        self._progress.update(
            self._task,
            description=pace.epoch,
            total=pace.all_steps,
            completed=pace.total_steps,
            text=text,
            visible=True,
        )

    wait = update

    def end_epoch(self, pace: _Pace, parts: Sequence[str]) -> None:
        # Between its parts, as the terminal would break a number in two.
        text = wrap_parts([pace.epoch, *parts, pace.wait], self._progress.console.width)
        # Plain: brackets in a metric's name are no markup, and numbers get no colours.
        self._progress.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


class _Notebook:
    """The text of `_Live` as the output of a notebook's cell."""

    interval_secs = _LIVE_INTERVAL_SECS

    def __init__(self, output: CellOutput) -> None:
        self._lines: list[str] = []
        self._output = output
        self._show()  # above what later handlers show

    def update(self, pace: _Pace, parts: Sequence[str]) -> None:
        self._show(_join(f"{pace.epoch}  step {pace.steps}", parts, pace.rates(), pace.loads()))

    wait = update

    def end_epoch(self, pace: _Pace, parts: Sequence[str]) -> None:
        self._lines.append(_join(pace.epoch, parts, [pace.wait]))
        self._show()

    def close(self) -> None:
        self._show()

    def _show(self, *live: str) -> None:
        self._output.show("\n".join([*self._lines, *live]))


_Display = _Lines | _Live | _Notebook


def _make_display(file: TextIO) -> _Display:
    # A file of the user's own is no cell's output.
    show = find_display() if file is sys.stdout else None
    if show is not None:
        return _Notebook(CellOutput(show))
    # `dumb` is what editors' shells call themselves, which cannot move the cursor.
    is_terminal = file.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return _Live(file) if is_terminal else _Lines(file)


def _join(first: str, *more: Sequence[str]) -> str:
    return first + "".join(part for parts in more for part in parts)


def _fit(
    steps: str, metrics: Sequence[str], rates: Sequence[str], loads: Sequence[str], num_chars: int
) -> str:
    """Return as many of the parts as fit, in their order; speed and time left stay."""
    text = ""
    for count in range(len(metrics) + len(loads), -1, -1):
        text = _join(steps, metrics[:count], rates, loads[: max(count - len(metrics), 0)])
        if len(text) <= num_chars:
            break
    return text


def _get_device(event: events.BeginTraining) -> Any:
    if event.trainer is None:
        return jax.local_devices()[0]
    return event.trainer.builder.mesh.local_devices[0]


def _format_metrics(
    values: Mapping[str, float], results: Mapping[str, float] | None = None
) -> list[str]:
    """Return metrics as texts, each with two spaces before it, with the test's in brackets."""
    results = results or {}
    parts = [
        f"  {name} {_format_number(value)}"
        + (f" (test {_format_number(results[name])})" if name in results else "")
        for name, value in values.items()
    ]
    only = [name for name in results if name not in values]
    return parts + [f"  test {name} {_format_number(results[name])}" for name in only]


def _format_number(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.3e}"

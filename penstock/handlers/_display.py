"""Where handlers print; a run's progress in place on a terminal or in a notebook, else as lines."""

from __future__ import annotations

import base64
import dataclasses
import importlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import jax

from penstock._text_tables import wrap_parts
from penstock.events import BeginEpoch, BeginStep, EndEpoch, EndStep, Event


def choose_output(file: TextIO | None) -> TextIO:
    """Return a handler's own file, else stdout on the first process and nowhere on the others."""
    if file is not None:
        return file
    return _NOWHERE if jax.process_index() else sys.stdout


class _Nowhere(io.TextIOBase):
    """A file that keeps nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


_NOWHERE: Any = _Nowhere()


def find_display() -> Callable[..., Any] | None:
    """Return IPython's `display` where this process is a notebook's kernel; None elsewhere."""
    # It is loaded in a kernel; importing it would take half a second elsewhere.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # IPython on a terminal has none
        return None
    return importlib.import_module("IPython.display").display


class CellOutput:
    """What a cell shows of one thing, by IPython's `display`: each call of `show` replaces it."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, text: str, png: bytes | None = None) -> None:
        """Show a text, or a picture whose text is for readers without pictures."""
        data = {"text/plain": text}
        if png is not None:
            data["image/png"] = base64.b64encode(png).decode()
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class Pace:
    """Where training stands, how fast it is, how long it will take, and what memory it needs.

    Compiles are left out of the rates. What measures updates is no part of the speed, and one of
    the time left. `stop_at` counts the steps of all calls of `train`.
    """

    def __init__(
        self,
        first_epoch: int = 0,
        num_epochs: int = 0,
        device: Any = None,
        stop_at: int | None = None,
    ) -> None:
        self.step = 0
        # Of a whole epoch, whether or not this one ends before.
        self._epoch_steps: int | None = None
        self._end_epoch = first_epoch + num_epochs
        self._stop_at = stop_at
        self._steps_before = 0
        self._epoch = first_epoch
        self._num_examples = 0
        self._last_rate: float | None = None
        self._device = device
        self.data_wait: float | None = None
        # Time, examples of this epoch and steps of all epochs, where counting began.
        self._epoch_start: tuple[float, int] | None = None
        self._start: tuple[float, int] | None = None
        self.total_steps = 0
        self._compile_secs = self._measure_secs = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case EndStep():
                self._compile_secs += event.compile_secs
                self._measure_secs += event.measure_secs
                self.step += 1
                self.total_steps += 1
                self._num_examples += event.num_examples
            # From the second launch on: the first compiles.
            case BeginStep() if self._epoch_start is None and self.step:
                self._epoch_start = (self._training_secs(), self._num_examples)
                self._start = self._start or (self._run_secs(), self.total_steps)
            case BeginEpoch():
                self._epoch, self.step, self._num_examples = event.epoch, event.first_step, 0
                self._steps_before = event.global_step - event.first_step
                # A reader without a length has, after one epoch, that of the last.
                self._epoch_steps = event.num_steps or self._epoch_steps
                self._epoch_start = (self._training_secs(), 0) if self._start else None
            case EndEpoch():
                self.data_wait = event.data_wait
                # Counted, where the reader did not say: the next epoch's bar has an end.
                self._epoch_steps = self.step
                self._last_rate = self.examples_per_sec
                self._epoch_start = None  # the test that may follow does not count
                self._start = self._start or (self._run_secs(), self.total_steps)

    def _run_secs(self) -> float:
        """Return a clock that stands still in compiles."""
        return time.monotonic() - self._compile_secs

    def _training_secs(self) -> float:
        """Return a clock that stands still in compiles and where updates are measured."""
        return self._run_secs() - self._measure_secs

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
        if self._epoch_start is None or self._num_examples <= self._epoch_start[1]:
            return self._last_rate
        secs = self._training_secs() - self._epoch_start[0]
        return (self._num_examples - self._epoch_start[1]) / max(secs, 1e-9)

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
        """Return speed and time left as far as known, each with two spaces before it."""
        speed, left = self.examples_per_sec, self.secs_left
        return [
            "" if speed is None else f"  {_format_count(speed)} ex/s",
            "" if left is None else f"  {_format_duration(left)} left",
        ]

    def loads(self) -> list[str]:
        """Return data wait and memory as far as known, each with two spaces before it."""
        return [self.wait, _format_memory(self._device)]


def _format_memory(device: Any) -> str:
    """Return the memory in use on a device as text, empty where the backend does not count it."""
    stats = None if device is None else device.memory_stats()
    # CPU devices have none.
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
class Lines:
    """One line a call, without control characters; each part has two spaces before it."""

    file: TextIO = _NOWHERE
    interval_secs: float = _LINES_INTERVAL_SECS

    def update(self, pace: Pace, parts: Sequence[str]) -> None:
        self._print(_join(f"{pace.epoch}  step {pace.steps}", parts, pace.rates(), pace.loads()))

    def wait(self, pace: Pace, parts: Sequence[str]) -> None:
        pass

    def end_epoch(self, pace: Pace, parts: Sequence[str]) -> None:
        self._print(_join(pace.epoch, parts, pace.rates(), pace.loads()))

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self.file, flush=True)


class Live:
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

    def update(self, pace: Pace, parts: Sequence[str]) -> None:
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

    def end_epoch(self, pace: Pace, parts: Sequence[str]) -> None:
        # Between its parts, as the terminal would break a number in two.
        text = wrap_parts([pace.epoch, *parts, pace.wait], self._progress.console.width)
        # Plain: brackets in a metric's name are no markup, and numbers get no colours.
        self._progress.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


class Notebook:
    """The text of `Live` as the output of a notebook's cell."""

    interval_secs = _LIVE_INTERVAL_SECS

    def __init__(self, output: CellOutput) -> None:
        self._lines: list[str] = []
        self._output = output
        self._show()  # above what later handlers show

    def update(self, pace: Pace, parts: Sequence[str]) -> None:
        self._show(_join(f"{pace.epoch}  step {pace.steps}", parts, pace.rates(), pace.loads()))

    wait = update

    def end_epoch(self, pace: Pace, parts: Sequence[str]) -> None:
        self._lines.append(_join(pace.epoch, parts, [pace.wait]))
        self._show()

    def close(self) -> None:
        self._show()

    def _show(self, *live: str) -> None:
        self._output.show("\n".join([*self._lines, *live]))


Display = Lines | Live | Notebook


def make_display(file: TextIO) -> Display:
    # A file of the user's own is no cell's output.
    show = find_display() if file is sys.stdout else None
    if show is not None:
        return Notebook(CellOutput(show))
    # `dumb` is what editors' shells call themselves, which cannot move the cursor.
    is_terminal = file.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Live(file) if is_terminal else Lines(file)


def _join(first: str, *more: Sequence[str]) -> str:
    return first + "".join(part for parts in more for part in parts)


def _fit(
    steps: str, metrics: Sequence[str], rates: Sequence[str], loads: Sequence[str], num_chars: int
) -> str:
    """Return as many of the parts as fit, in their order.

    Data wait and memory go first, then the metrics from the last on. Speed and time left stay: they
    are what a person looks at a live line for.
    """
    droppable = [*metrics, *loads]
    for count in range(len(droppable), -1, -1):
        text = _join(steps, metrics[:count], rates, loads[: max(count - len(metrics), 0)])
        if len(text) <= num_chars:
            return text
    text = _join(steps, rates)
    return text if len(text) <= num_chars else f"{text[: max(num_chars - 3, 0)]}..."

"""Where progress is shown: in place on a terminal or in a notebook, elsewhere as plain lines."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from penstock._text_tables import wrap_parts
from penstock.handlers import _notebook
from penstock.handlers._pace import Pace

_LIVE_INTERVAL_SECS = 0.25
_LINES_INTERVAL_SECS = 5.0
_BAR_CHARS = (4, 20)  # at least and at most


class Display(Protocol):
    """Where progress is shown; each part of a text has two spaces before it."""

    interval_secs: float

    def update(self, pace: Pace, parts: Sequence[str]) -> None:
        """Show where training is."""

    def wait(self, pace: Pace, parts: Sequence[str]) -> None:
        """Show what training waits for, where a later text can replace it."""

    def end_epoch(self, pace: Pace, parts: Sequence[str]) -> None:
        """Leave a line about the epoch."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Nothing:
    """Outside training nothing is shown."""

    interval_secs = 0.0

    def update(self, pace: Pace, parts: Sequence[str]) -> None:
        pass

    wait = end_epoch = update

    def close(self) -> None:
        pass


@dataclasses.dataclass
class Lines:
    """One line a call, without control characters."""

    file: TextIO
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

    def __init__(self, output: _notebook.Output) -> None:
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


def make_display(file: TextIO) -> Display:
    """Return the display that suits a file."""
    # A file of the user's own is no cell's output.
    show = _notebook.find_display() if file is sys.stdout else None
    if show is not None:
        return Notebook(_notebook.Output(show))
    # `dumb` is what editors' shells call themselves, which cannot move the cursor.
    is_terminal = file.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Live(file) if is_terminal else Lines(file)


def _join(first: str, *others: Sequence[str]) -> str:
    return first + "".join(part for parts in others for part in parts)


def _fit(
    steps: str, metrics: Sequence[str], rates: Sequence[str], loads: Sequence[str], num_chars: int
) -> str:
    """Return as many of the parts as fit, in their order, cut where the first does not fit itself.

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

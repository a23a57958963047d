"""Where progress is shown: on a terminal in place, elsewhere as plain lines."""

from __future__ import annotations

import dataclasses
import os
from typing import Protocol, TextIO

from penstock.handlers._pace import Pace

_LIVE_INTERVAL_SECS = 0.25
_LINES_INTERVAL_SECS = 5.0


class Display(Protocol):
    """Where progress is shown; every text has two spaces before each of its parts."""

    interval_secs: float

    def update(self, pace: Pace, text: str) -> None:
        """Show where training is."""

    def wait(self, pace: Pace, text: str) -> None:
        """Show what training waits for, if that can be taken back afterwards."""

    def end_epoch(self, pace: Pace, text: str) -> None:
        """Leave a line about the epoch."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Nothing:
    """Outside training nothing is shown."""

    interval_secs = 0.0

    def update(self, pace: Pace, text: str) -> None:
        pass

    wait = end_epoch = update

    def close(self) -> None:
        pass


@dataclasses.dataclass
class Lines:
    """One line a call, without control characters."""

    file: TextIO
    interval_secs: float = _LINES_INTERVAL_SECS

    def update(self, pace: Pace, text: str) -> None:
        self._print(f"{pace.epoch}  step {pace.steps}{text}{pace.rates()}")

    def wait(self, pace: Pace, text: str) -> None:
        pass

    def end_epoch(self, pace: Pace, text: str) -> None:
        self._print(f"{pace.epoch}{text}{pace.rates()}")

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self.file, flush=True)


class Live:
    """One line that changes in place, and above it one that stays for each epoch."""

    interval_secs = _LIVE_INTERVAL_SECS

    def __init__(self, file: TextIO) -> None:
        # Imported here: it takes 50 ms, and only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as RichProgress

        console = Console(file=file)
        self._bar = BarColumn()
        self._progress = RichProgress(
            SpinnerColumn("line" if console.options.ascii_only else "dots"),
            TextColumn("{task.description}", markup=False),
            self._bar,
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            transient=True,  # the epochs' lines stay, the live one goes
        )
        self._task = self._progress.add_task("", total=None, text="", visible=False)
        self._progress.start()

    def update(self, pace: Pace, text: str) -> None:
        text = f"{pace.steps}{text}{pace.rates()}"
        free = self._progress.console.width - len(f"- {pace.epoch}  {text} ")
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

    def end_epoch(self, pace: Pace, text: str) -> None:
        self._progress.console.print(
            pace.epoch + text, soft_wrap=True, markup=False, highlight=False
        )

    def close(self) -> None:
        self._progress.stop()


def display(file: TextIO) -> Display:
    """Return what suits a file."""
    is_terminal = file.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Live(file) if is_terminal else Lines(file)

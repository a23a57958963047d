"""Progress of downloads and conversions: functions that are called with bytes done and in all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with a name, bytes so far and bytes in all.
Progress = Callable[[str, int, int | None], None]

_LINE_INTERVAL_SECS = 10.0


def no_progress(name: str, num_bytes: int, total_bytes: int | None) -> None:
    """Report nothing."""


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Give a function that shows progress on stderr: bars on a terminal, else some lines.

    Stdout is left to results. Where stderr is no terminal there is a line each ten seconds, and
    none for what takes less.

    >>> with show_progress() as progress:
    ...     progress("a.tar.gz", 512, 1024)
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    # It costs 40 ms, which a run without a terminal saves.
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        "{task.description}",
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
    )
    tasks: dict[str, rich_progress.TaskID] = {}
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:

        def report(name: str, num_bytes: int, total_bytes: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total_bytes)
            bars.update(tasks[name], completed=num_bytes, total=total_bytes)

        yield report


class _Lines:
    """Print a line for each ten seconds that something takes."""

    def __init__(self) -> None:
        self._name, self._since_secs = "", 0.0

    def __call__(self, name: str, num_bytes: int, total_bytes: int | None) -> None:
        now_secs = time.monotonic()
        if name != self._name:
            self._name, self._since_secs = name, now_secs
        if now_secs - self._since_secs >= _LINE_INTERVAL_SECS:
            total = "" if total_bytes is None else f" of {total_bytes / 1e6:.1f}"
            print(f"{name}: {num_bytes / 1e6:.1f}{total} MB", file=sys.stderr, flush=True)
            self._since_secs = now_secs

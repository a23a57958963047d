"""How long a newcomer waits for the answer to a mistake: each of `tests/commands/mistakes.txt`.

    python -m benchmarks mistakes
    python -m benchmarks mistakes --containing "penstock train"

The commands run one after the other, each in its own process, in the folder that the tests make.
A command that takes longer than the limit runs once more, and the shorter time counts, as other
programs may have used the machine. Its exit status and its line are compared with the table's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _timing
from tests.commands import mistakes

ROOT = Path(__file__).parent.parent
LIMIT_SECS = 5
"""An answer is there within this time."""


def run(mistake: mistakes.Mistake, folder: Path) -> tuple[float, int, list[str]]:
    """Run a command in a folder; return its seconds, exit status and lines of penstock's."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *mistake.words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    lines = [line for line in done.stderr.splitlines() if line.startswith("penstock")]
    return seconds, done.returncode, lines


def measure(chosen: Sequence[mistakes.Mistake], folder: Path) -> list[float]:
    """Return the seconds of each answer; print to stderr which one is late or not the table's."""
    # First of all: the plugin with which the runs are written registers a network here.
    answers = [mistakes.fill_in(each.answer, folder) for each in chosen]
    mistakes.write_files(folder)
    if not all(each.is_quick for each in chosen):
        with contextlib.redirect_stdout(io.StringIO()):
            mistakes.write_runs(folder)
    found = []
    for each, expected in zip(chosen, answers, strict=True):
        seconds, status, lines = run(each, folder)
        if seconds > LIMIT_SECS:
            print(f"{seconds:.1f} s, once more: penstock {each.command}", file=sys.stderr)
            seconds = min(seconds, run(each, folder)[0])
        if (status, lines) != (each.status, [expected]):
            print(f"penstock {each.command} got [{status}] {lines}", file=sys.stderr)
        found.append(seconds)
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Print the median, how many are late, and a table of the slowest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks mistakes")
    parser.add_argument("--containing", default="", help="only commands with this text")
    parser.add_argument("--slowest", type=int, default=10, help="how many the table names")
    options = parser.parse_args(arguments)
    every = mistakes.read_mistakes()
    chosen = [each for each in every if options.containing in f"penstock {each.command}"]
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(chosen, Path(temporary).resolve())
    late = sum(seconds > LIMIT_SECS for seconds in found)
    print(f"{_timing.environment()}\n")
    print(f"Median of {len(found)}: {statistics.median(found):.1f} s.", end=" ")
    print(f"Over {LIMIT_SECS} s: {late}. The slowest:\n")
    slowest = sorted(zip(found, chosen, strict=True), key=lambda pair: -pair[0])
    rows = [[f"`penstock {each.command}`", f"{secs:.1f}"] for secs, each in slowest]
    print(_timing.table(["command", "seconds"], rows[: options.slowest]))


if __name__ == "__main__":
    main(sys.argv[1:])

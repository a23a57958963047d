"""The logs of runs, as `CSVLog` and `JSONLog` write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock._errors import listed

_COLUMNS = ("kind", "epoch", "step", "global_step", "seconds", "examples")


class LogError(ValueError):
    """A run's log is missing, or is not one."""


class Row(NamedTuple):
    """A row of a log: what it is about, and the metrics that were known then."""

    kind: str
    epoch: float
    global_step: float
    seconds: float
    metrics: Mapping[str, float]


class RunLog(NamedTuple):
    """The log of a run."""

    name: str
    rows: Sequence[Row]

    def find_rows(self, kind: str, metric: str) -> list[Row]:
        """Return the rows of a kind that have a metric."""
        return [row for row in self.rows if row.kind == kind and metric in row.metrics]


def read_log(run: str) -> RunLog:
    """Return the log of a run.

    Arguments:
      run: a log file, or a folder with one.

    Raises:
      LogError: there is no such file, no log or more than one in the folder, or nothing in it.
    """
    path = _find(run)
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A run that was killed, or writes at this moment, may have left half a line.
        lines = [line for line in lines if line.endswith("\n") and line.strip()]
        is_json = bool(lines) and lines[0].startswith("{")
        rows = [
            _read_row(row) for row in (map(json.loads, lines) if is_json else csv.DictReader(lines))
        ]
    except (ValueError, TypeError, OSError) as error:
        raise LogError(
            f"the log {str(path)!r} got something that cannot be read ({error}), expected rows as "
            "CSVLog and JSONLog write them."
        ) from error
    if not rows:
        head = [] if not lines else lines[0].strip().split(",")
        if head and not set(_COLUMNS) <= set(head):
            raise LogError(
                f"the log {str(path)!r} got no line of a log, expected rows as CSVLog and JSONLog "
                "write them. Is it another file?"
            )
        raise LogError(
            f"the log {str(path)!r} got no rows, expected at least one. Has the run begun? A row "
            "comes every few steps and each epoch."
        )
    return RunLog(str(Path(run)), rows)


def suggest_run(path: Path) -> str:
    """Return a sentence that names a run in a folder; empty where it holds none."""
    runs = [str(each.parent) for each in sorted(path.glob("*/data.json"))]
    return f"Name a run in it, such as {runs[0]!r}." if runs else ""


def _find(run: str) -> Path:
    path = Path(run)
    if path.is_file():
        return path
    # Logs that were put aside end in a number, `log.csv.1`, and so are not among them.
    found = sorted([*path.glob("*.csv"), *path.glob("*.jsonl")])
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(each) for each in found)
        problem = f"The folder has several. Name one: {names}."
    elif path.is_dir() and (hint := suggest_run(path)):
        problem = hint
    elif path.is_dir():
        problem = "The folder has no .csv or .jsonl file. Was a CSVLog or JSONLog among the run's "
        problem += "handlers?"
    else:
        problem = "There is nothing with that name."
    raise LogError(f"the run got {run!r}, expected a log file or a folder with one. {problem}")


def _read_row(row: Mapping[str, object]) -> Row:
    missing = [name for name in _COLUMNS if name not in row]
    if missing:
        raise ValueError(f"rows without {listed(missing)}")
    epoch, global_step, seconds = (
        float(str(row[name])) for name in ("epoch", "global_step", "seconds")
    )
    # A metric may be missing, as in rows before the first test, or have axes.
    metrics = {
        name: float(value)
        for name, value in row.items()
        if name not in _COLUMNS and isinstance(value, str | int | float) and value != ""
    }
    return Row(str(row["kind"]), epoch, global_step, seconds, metrics)

"""The runs in a folder and what their files say of them, read without JAX."""

from __future__ import annotations

import contextlib
import csv
import datetime
import glob
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock._errors import listed
from penstock._files import expand_path, replacing
from penstock._folder_lock import is_in_use
from penstock._text_tables import escape, find_columns, wrap_words
from penstock.commands._failures import UsageError
from penstock.commands._image_folders import has_images

# What `Record` writes: the kind of a value, and of what is in it.
_RECORD_KINDS: Mapping[str, tuple[type, type | tuple[type, ...]]] = {
    **dict.fromkeys(("global_step", "num_steps", "num_train", "num_test"), (int, ())),
    "processes": (int, ()),
    "devices": (list, str),
    "image_shape": (list, int),
    "versions": (dict, str),
    "seconds": (dict, (int, float)),
}
_COLUMNS = ("kind", "epoch", "step", "global_step", "seconds", "examples")


class LogError(ValueError):
    """A run's log is missing, or is not one."""


class Row(NamedTuple):
    """A row of a log: what it is about, and the metrics that were known then."""

    kind: str
    epoch: int
    global_step: int
    seconds: float
    metrics: Mapping[str, float]


def find_rows(log: Sequence[Row], kind: str, metric: str) -> list[Row]:
    return [row for row in log if row.kind == kind and metric in row.metrics]


def read_log(run: Path) -> list[Row]:
    """Return the rows of a log, or of the one in a folder, else raise a `LogError`."""
    path = _find(run)
    rows_of = "rows as CSVLog and JSONLog write them"
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A run that was killed, or writes at this moment, may have left half a line.
        lines = [line for line in lines if line.endswith("\n") and line.strip()]
        is_json = bool(lines) and lines[0].startswith("{")
        rows = [*map(_read_row, map(json.loads, lines) if is_json else csv.DictReader(lines))]
    except (ValueError, TypeError, OSError) as error:
        raise LogError(
            f"the log {str(path)!r} got bytes that cannot be read ({error}), expected {rows_of}."
        ) from error
    if not rows:
        got = "no rows, expected at least one. Has the run begun? A row comes every few steps."
        if lines and not set(_COLUMNS) <= set(lines[0].strip().split(",")):
            got = f"no line of a log, expected {rows_of}. Is it another file?"
        raise LogError(f"the log {str(path)!r} got {got}")
    return rows


def suggest_run(path: Path) -> str:
    """Return a sentence that names a run in a folder; empty where it holds none."""
    runs = [str(file.parent) for file in sorted(path.glob("*/data.json"))]
    return f"Name a run in it, such as {runs[0]!r}." if runs else ""


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    # Logs that were put aside end in a number, `log.csv.1`, and so are not among them.
    logs = sorted([*path.glob("*.csv"), *path.glob("*.jsonl")])
    if len(logs) == 1:
        return logs[0]
    problem = "There is nothing with that name."
    if logs:
        problem = f"The folder has several. Name one: {', '.join(map(str, logs))}."
    elif path.is_dir():
        problem = "The folder has no .csv or .jsonl file. Was a CSVLog or JSONLog among the run's "
        problem = suggest_run(path) or f"{problem}handlers?"
    raise LogError(f"the run got {str(path)!r}, expected a log or a folder with one. {problem}")


def _read_row(row: Mapping[str, object]) -> Row:
    missing = [name for name in _COLUMNS if name not in row]
    if missing:
        raise ValueError(f"rows without {listed(missing)}")
    epoch, global_step = (int(str(row[name])) for name in ("epoch", "global_step"))
    # A metric may be missing, as in rows before the first test, or have axes.
    metrics = {
        name: float(value)
        for name, value in row.items()
        if name not in _COLUMNS and isinstance(value, str | int | float) and value != ""
    }
    return Row(str(row["kind"]), epoch, global_step, float(str(row["seconds"])), metrics)


# Flags that may change when a run goes on, and are not worth a line.
SILENT = ("config", "plugin", "overwrite", "checkpointDir", "output_dir", "skip_damaged")
DISPLAY = (
    *("log_loss_every_n_iters", "eval_every_n_epochs", "profile_every_n_iters", "profile_at_task"),
    *("log_device_placement", "print_model_statistics", "log_trainable_vars_statistics", "hooks"),
    *("save_checkpoints_steps", "save_checkpoints_secs", "summaryDir", "place", "task_index"),
    "worker_hosts",
)

# The data and the network have columns of their own.
_OWN_COLUMNS = ("dataset_name", "model_name")
_MAX_DEPTH = 4

# By how a run says that it ended; a run that got to --stop_at_step stopped by itself.
_STATES = {"completed": "done", "stopped": "done", "interrupted": "stopped", "failed": "failed"}


class FoundRun(NamedTuple):
    """A run of `penstock train`, as its folder describes it."""

    path: Path
    flags: Mapping[str, object]
    started: datetime.datetime  # or went on, for the last time
    state: str  # `done`, `running`, `stopped`, or `failed`: it raised an error, or did nothing
    num_steps: int  # as far as the log or a checkpoint tells
    best: Mapping[str, float]  # the metrics of the best test; empty before the first
    best_step: int | None
    log: Sequence[Row]  # empty before the first row

    @property
    def data(self) -> str:
        return name_data(self.flags)

    @property
    def network(self) -> str:
        return str(self.flags.get("model_name", ""))

    def describe_best(self) -> str:
        """Return the accuracy of the best test as text, empty before the first."""
        return f"{self.best['accuracy']:.2%}" if "accuracy" in self.best else ""

    def to_json(self) -> dict[str, object]:
        return {
            "run": str(self.path),
            "data": self.data,
            "network": self.network,
            "state": self.state,
            "started": self.started.isoformat(" ", "seconds"),
            "steps": self.num_steps,
            "best": {"step": self.best_step, **self.best} if self.best else None,
            "flags": dict(self.flags),
        }


def name_data(flags: Mapping[str, object]) -> str:
    """Return what names the data in a run's folder: of a folder of images that folder's name.

    >>> name_data({"dataset_name": "image_folder", "dataset_dir": "shared/photos/"})
    'photos'
    """
    name, folder = str(flags.get("dataset_name", "")), flags.get("dataset_dir")
    if name != "image_folder" or folder is None:
        return name
    # Resolved: of `.` and of `..` too there is a name.
    return expand_path(str(folder)).resolve().name or name


def find_run_path(word: str) -> Path:
    """Return the path of the run that a word of the command line names.

    It is a path; or the name of a run, or a path in one, without `runs/` before it; or the name of
    the data of the one run that was trained on it, such as `photos`. A word that names no run in
    `runs` is a path, whatever is there.
    """
    path, runs = expand_path(word), Path("runs")
    # A folder of images may have the name of its run's data.
    if path.is_absolute() or not word or (path.exists() and not _is_class_folder(path)):
        return path
    if (runs / path).exists():
        return runs / path
    folders = [folder for folder in _list_runs(runs, path.name) if len(path.parts) == 1]
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        raise UsageError(
            f"the run got {word!r}, expected the name of one run. {len(folders)} runs are on this "
            f"data: {names}. Name one of them."
        )
    return folders[0] if folders else path


def _is_class_folder(path: Path) -> bool:
    """Say whether a path may be a folder of images, and no run, whatever else lies in it."""
    if not path.is_dir() or (path / "config.json").exists():
        return False
    return has_images(path) or not any(entry.is_file() for entry in path.iterdir())


def _list_runs(runs: Path, title: str) -> list[Path]:
    paths = []
    for path in sorted(runs.glob(f"{glob.escape(title)}_*")):
        with contextlib.suppress(UsageError):
            flags, _ = read_flags(path)
            if name_data(flags) == title:
                paths.append(path)
    return paths


def find_runs(folder: Path) -> list[FoundRun]:
    """Return the runs in a folder and below it, the last that was started at the end.

    Those whose flags cannot be read are named on stderr and left out.
    """
    if not folder.is_dir():
        raise UsageError(f"got {str(folder)!r}, expected a folder that holds runs.")
    runs: list[FoundRun] = []
    for path in _walk(folder):
        try:
            runs.append(read_run(path))
        # One that is broken hides none of the others.
        except UsageError:
            text = f"left out: {escape(str(path))}, whose config.json is cut off or of another kind"
            print(wrap_words(text, find_columns(sys.stderr), "  "), file=sys.stderr)
    return sorted(runs, key=lambda run: (run.started, run.path))


def _walk(folder: Path, depth: int = 0) -> Iterator[Path]:
    # Closed to this user, or deleted meanwhile: the folders beside it are looked at all the same.
    with contextlib.suppress(PermissionError, FileNotFoundError):
        if (folder / "config.json").is_file() and (folder / "data.json").is_file():
            # What is in it belongs to it, as the run that it replaces.
            yield folder
        elif depth < _MAX_DEPTH:
            for item in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if item.is_dir(follow_symlinks=False) and not item.name.startswith("."):
                    yield from _walk(Path(item.path), depth + 1)


def read_run(path: Path) -> FoundRun:
    """Return what a run's folder says of it."""
    flags, started = read_flags(path)
    log: list[Row] = []
    # A run that has just begun has no row yet.
    with contextlib.suppress(LogError):
        log = read_log(path / "log.csv")
    checkpoints = (path / "checkpoints").glob("*")
    saved = [int(folder.name) for folder in checkpoints if folder.name.isdigit()]
    # The number of a step counts from 0; epochs and tests say how many steps were done.
    done = [row.global_step + (row.kind == "step") for row in log]
    num_steps = max([0, *done, *saved])
    best_step, best = _read_best(path / "best" / "test.json")
    state, start = _find_state(path, num_steps), datetime.datetime.fromtimestamp(started)
    return FoundRun(path, flags, start, state, num_steps, best, best_step, log)


def read_flags(path: Path) -> tuple[dict[str, object], float]:
    """Return the flags of a run by name, and when they were written, in seconds since 1970."""
    config = path / "config.json"
    try:
        sections = json.loads(config.read_text(encoding="utf-8"))
        written = config.stat().st_mtime
        if not isinstance(sections, dict):
            raise ValueError("no flags")
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else f"{error}; is it whole?"
        raise UsageError(
            f"got {str(path)!r}, expected the folder of a run, with its config.json ({what}). "
            "`penstock runs FOLDER` lists the runs in a folder."
        ) from error
    return flatten(sections), written


# Names of files are bytes, which need not be UTF-8: they are written as they are.
_CSV: Mapping[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}


def write_rows(path: Path, rows: Iterable[Iterable[object]]) -> None:
    with replacing(path) as temporary, temporary.open("w", **_CSV) as file:
        csv.writer(file).writerows(rows)


def read_rows(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file, all as long as its head; none where it cannot be read."""
    try:
        with path.open(**_CSV) as file:
            rows = list(csv.reader(file))
        return rows if rows and {*map(len, rows)} == {len(rows[0])} else []
    except (OSError, ValueError, csv.Error):
        return []


def flatten(sections: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in sections.items():
        flat |= flatten(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def _find_state(path: Path, num_steps: int) -> str:
    if is_in_use(path):
        return "running"
    # What is still called running was killed.
    state = str(read_record(path / "run.json").get("state"))
    return _STATES.get(state, "stopped" if num_steps else "failed")


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a run; empty where there is none, as of runs of older versions.

    >>> read_record(Path("nowhere/run.json"))
    {}
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def check_record(path: Path) -> dict[str, Any]:
    """Return the record of a run without what is null; raise where a person has broken it."""
    record = {name: value for name, value in read_record(path).items() if value is not None}
    wrong: list[str] = []
    for name, (kind, item_kind) in _RECORD_KINDS.items():
        value = record.get(name, kind())
        items = value.values() if isinstance(value, dict) else value if kind is list else ()
        if not isinstance(value, kind) or not all(isinstance(item, item_kind) for item in items):
            wrong.append(f"{name} {value!r}")
    if wrong:
        raise ValueError(
            f"the run's {str(path)!r} got {', '.join(wrong)}, expected what `penstock train` "
            "writes there. Remove the file: the page is then made without it."
        )
    return record


def _read_best(path: Path) -> tuple[int | None, Mapping[str, float]]:
    record = read_record(path)
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return int(record["step"]), {name: float(v) for name, v in record["metrics"].items()}
    return None, {}


def list_differences(runs: Sequence[FoundRun]) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.flags)
    shown = [name for name in names if name not in (*SILENT, *DISPLAY, *_OWN_COLUMNS)]
    return [n for n in shown if len({json.dumps(run.flags.get(n)) for run in runs}) > 1]


def describe_differences(run: FoundRun, runs: Sequence[FoundRun]) -> str:
    """Return the flags in which a run differs from others of its data and network.

    A value that more of them have than any other is left out.
    """
    alike = [r for r in runs if (r.data, r.network) == (run.data, run.network)]
    words = []
    for name in list_differences(alike):
        value = run.flags.get(name)
        first, second = Counter(json.dumps(r.flags.get(name)) for r in alike).most_common(2)
        if first[1] <= second[1] or first[0] != json.dumps(value):
            words.append(f"no {name}" if value is None else f"{name}={value}")
    return ", ".join(words)


TRIALS = "trials.csv"
"""The table of a sweep's trials in its folder."""


def format_table(table: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the table of a sweep for people to read; numbers in its file are whole.

    >>> format_table([("trial", "accuracy"), ("trial_000", "0.97502")])[1]
    ('trial_000', '97.50%')
    """
    head, *rows = table
    return [tuple(head), *(tuple(map(_format_cell, head, row)) for row in rows)]


def _format_cell(name: str, text: str) -> str:
    with contextlib.suppress(ValueError):
        if name == "accuracy":
            return f"{float(text):.2%}"
        # An integer stays whole.
        return text if text.isdigit() else f"{float(text):.4g}"
    return text

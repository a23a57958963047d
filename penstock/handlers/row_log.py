"""`CSVLog` and `JSONLog`: the metrics of a run as rows of a file, in two forms of a row."""

from __future__ import annotations

import abc
import csv
import io
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from typing import Any

import jax

from penstock import events
from penstock._files import append_whole, expand_path, find_free, replacing
from penstock._json_values import encode_json
from penstock.handlers._arguments import as_names, explain_write, name_scalars, name_values
from penstock.handlers._readings import Reading, Readings
from penstock.handlers.evaluate import Test, TestResults

_PROBE = b"\n" * 4096


class LogFile:
    """A file that grows by whole lines; `owner` is for errors."""

    def __init__(self, owner: str, path: str | os.PathLike[str]) -> None:
        self.path = expand_path(path)
        self._owner = owner
        self._file: FileIO | None = None

    def open(self, is_resumed: bool, keep: Callable[[list[bytes]], list[bytes]]) -> None:
        """Open the file, with what `keep` keeps of the lines an earlier part of the run wrote.

        A line that a crash cut off is removed. When nothing is resumed, an old file keeps its rows
        under another name and a new one begins.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not is_resumed and self.path.is_file() and self.path.stat().st_size:
                self.path.rename(find_free(self.path))
            self._file = FileIO(self.path, "ab")
            # Now, and not at the first row: a run of hours should not find out then that there is
            # no room; a full disk lets a file be opened.
            self._file.truncate(self.append(_PROBE))
            lines = keep(self.lines())
            # A killed process may have left half a line.
            if b"".join(lines) != self.path.read_bytes():
                self.replace(lines)
        except OSError as error:
            self.close()
            raise self.explain(error) from error

    def explain(self, error: OSError) -> OSError:
        """Return an error of the same class that names the path and says what to do."""
        return explain_write(self._owner, self.path, error)

    def lines(self) -> list[bytes]:
        """Return the file's whole lines, blank ones left out."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        return [line for line in lines if line.endswith(b"\n") and line.strip()]

    def is_open(self) -> bool:
        """Return whether rows are written: from a run's begin to its end, in one process."""
        return self._file is not None

    def append(self, data: bytes) -> int:
        """Write lines; return the size before. After an error nothing of them is in the file."""
        return 0 if self._file is None else append_whole(self._file, data)

    def replace(self, lines: list[bytes]) -> None:
        """Put other lines in the place of all; a crash leaves the old or the new ones."""
        with replacing(self.path) as temporary:
            temporary.write_bytes(b"".join(lines))
        previous, self._file = self._file, FileIO(self.path, "ab")
        if previous is not None:
            previous.close()

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


_LOGGER = logging.getLogger("penstock")

COLUMNS = ("kind", "epoch", "step", "global_step", "seconds", "examples")

Row = dict[str, Any]
Values = Mapping[str, Any]
"""Metrics by name, or the cells of a row."""


class RowLog(abc.ABC):
    """Write the rows of a run to a file; of several processes only the first does.

    A write that fails during training is warned of once, and tried again with each later row; what
    cannot be written at the end is an error then. Days of training must not end for a row.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_steps: int,
        names: Sequence[str],
        name_metrics: Callable[[events.Metrics, Sequence[str]], Values],
        test: Test | None,
    ) -> None:
        owner = type(self).__name__
        self._file = LogFile(owner, path)
        self._every_steps, self._names = every_steps, as_names(names)
        self._name_metrics, self._tests = name_metrics, TestResults(owner, test)
        self._readings = Readings(every_steps)
        self._unwritten: list[Row] = []
        self._base = (0.0, 0)  # seconds and examples before this call of `train`
        self._start: float | None = None
        self._last_step = (0, 0)  # epoch and step
        self._global_step = 0

    @abc.abstractmethod
    def _parse(self, lines: Sequence[bytes]) -> Sequence[Values | None]:
        """Return the row of each line, `None` for a header; raise ValueError at another line."""

    @abc.abstractmethod
    def _write_row(self, row: Row) -> None:
        """Write a row; after an error the file is as it was."""

    def __call__(self, event: events.Event) -> None:
        """Write the rows that are ready."""
        if isinstance(event, events.BeginTraining):
            self._begin(event)
        elif self._file.is_open():
            self._write(self._make_rows(event))
            if isinstance(event, events.EndTraining):
                self._end(event)

    def _begin(self, event: events.BeginTraining) -> None:
        self._unwritten = []
        self._file.close()
        if jax.process_index() == 0:
            self._file.open(event.global_step > 0, lambda lines: self._keep(lines, event))

    def _keep(self, lines: list[bytes], event: events.BeginTraining) -> list[bytes]:
        """Return the lines of steps that are not made again, and count on from them."""
        try:
            rows = self._parse(lines)
            kept = [row is None or is_before(row, event) for row in rows]
        except (ValueError, KeyError) as error:
            self._file.close()
            raise ValueError(
                f"the log {str(self._file.path)!r} got a line that cannot be read ({error}), "
                "expected the rows of this run. It is resumed, and they go on there. Move the file "
                "away, or choose another path."
            ) from error
        self._begin_counts(event, [row for row in itertools.compress(rows, kept) if row])
        return [*itertools.compress(lines, kept)]

    def _begin_counts(self, event: events.BeginTraining, kept: Sequence[Values]) -> None:
        # A further call of `train` counts on; the state of a resumed run comes after this event.
        is_further = event.global_step and self._global_step == event.global_step
        self._base = self._count() if is_further else (0.0, 0)
        tested = [int(row["global_step"]) for row in kept if row["kind"] == "test"]
        # One at the checkpoint may have no row yet. An earlier one has none because it was cut out.
        self._tests.begin(max([event.global_step - 1, *tested]))
        self._global_step, self._start = event.global_step, time.monotonic()
        self._readings(event)

    def _write(self, rows: Sequence[Row]) -> None:
        had_failed = bool(self._unwritten)
        self._unwritten += rows
        error = self._flush() if rows else None
        # Said once: the rows are kept and written when there is room.
        if error is not None and not had_failed:
            _LOGGER.warning("%s Training goes on without it.", self._file.explain(error))

    def _flush(self) -> OSError | None:
        """Write the rows that are not in the file yet; return the error that stopped it."""
        try:
            while self._unwritten:
                self._write_row(self._unwritten[0])
                # Not before it is written, so that a full disk loses none.
                del self._unwritten[0]
        except OSError as error:
            return error
        return None

    def _end(self, event: events.EndTraining) -> None:
        error = self._flush()
        self._file.close()
        self._base, self._start = self._count(), None
        self._readings = Readings(self._every_steps)
        # The error that ended training is the one to see.
        if error is not None and event.error is None:
            raise self._file.explain(error) from error

    def get_state(self) -> events.HandlerState:
        """Return steps, seconds and examples for a checkpoint, after writing the rows due."""
        if self._file.is_open():
            self._write([*map(self._make_step_row, self._readings.take())])
        seconds, examples = self._count()
        counts = {"global_step": self._global_step, "seconds": seconds, "examples": examples}
        return {**counts, "last_step": list(self._last_step)}

    def set_state(self, state: events.HandlerState) -> None:
        """Restore the counters of steps, seconds and examples."""
        self._readings = Readings(self._every_steps)
        if self._start is not None:  # BeginTraining was there already
            self._start = time.monotonic()
        self._global_step = int(state["global_step"])
        self._base = float(state["seconds"]), int(state["examples"])
        # Earlier checkpoints do not have it.
        epoch, step = state.get("last_step", self._last_step)
        self._last_step = int(epoch), int(step)

    def _make_rows(self, event: events.Event) -> list[Row]:
        rows = [*map(self._make_step_row, self._readings(event))]
        match event:
            case events.EndStep():
                self._last_step = (event.epoch, event.step)
                self._global_step = event.global_step + 1
            case events.EndEpoch():
                numbers = (event.epoch, event.num_steps, event.global_step)
                rows.append(self._make_row("epoch", numbers, event.metrics, {}))
        for global_step, metrics in self._tests(event):
            numbers = (*self._last_step, global_step)
            rows.append(self._make_row("test", numbers, metrics, {}))
        return rows

    def _count(self) -> tuple[float, int]:
        seconds = 0.0 if self._start is None else time.monotonic() - self._start
        return self._base[0] + seconds, self._base[1] + self._readings.num_examples

    def _make_step_row(self, reading: Reading) -> Row:
        numbers = (reading.epoch, reading.step, reading.global_step)
        # It is written a launch late, when more have been counted.
        examples = self._base[1] + reading.num_examples
        beside = {"examples": examples, **reading.rates, **reading.norms}
        return self._make_row("step", numbers, reading.metrics, beside)

    def _make_row(
        self, kind: str, numbers: tuple[int, ...], metrics: events.Metrics, beside: Row
    ) -> Row:
        secs, examples = self._count()
        cells = (kind, *numbers, round(secs, 6), examples)
        row = {**dict(zip(COLUMNS, cells, strict=True)), **beside}
        # In the place of what is beside it: the program knows its learning rate better.
        for name, value in self._name_metrics(metrics, self._names).items():
            # A metric that is called like one of our columns keeps a column of its own.
            row[f"metric {name}" if name in COLUMNS else name] = value
        return row


def is_before(row: Values, event: events.BeginTraining) -> bool:
    """Return whether a row is of a step before `event`: steps after it are trained again."""
    epoch, global_step = int(row["epoch"]), int(row["global_step"])
    if row["kind"] == "epoch":
        return epoch < event.epoch
    # A step's number is that of the step itself, a test's that of the steps done before it.
    return global_step < event.global_step + (row["kind"] == "test")


class CSVLog(RowLog):
    """Write metrics to a CSV file: a row every `every_steps` steps, and one for each epoch.

    Columns: `kind` (`step`, `epoch` or `test`), `epoch`, `step`, `global_step`, then `seconds` and
    `examples` since the run began, then the metrics.

    - A `step` row has the numbers and metrics of that step.
    - An `epoch` row has the number of steps in the epoch, the steps done in all, and the means of
      the metrics over the epoch.
    - A `test` row has the steps done before the test.

    A metric with the name of a column gets a prefix, such as `metric step`; one that first appears
    later adds a column. Rows are written whole, and before each checkpoint is saved. A resumed run
    continues its file; rows of steps that are trained again are removed first. A new run starts a
    new file and renames the old one to the next free of `path.1`, `path.2`, ...

    Arguments:
      path: the file; missing folders are created.
      every_steps: the interval in steps; 0 or less writes epochs only.
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function of metrics, called after each epoch.

    Raises:
      OSError: at `BeginTraining`, if the file cannot be written. A later write that fails is logged
        as a warning and tried again; if it still fails at the end of training, it is an error.
      ValueError: a resumed run found a file of another program.

    >>> import pathlib, tempfile
    >>> from penstock.events import BeginTraining, EndEpoch, EndTraining
    >>> path = pathlib.Path(tempfile.mkdtemp(), "log.csv")
    >>> log = CSVLog(path, names=("loss", "accuracy"))
    >>> log(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    >>> log(EndEpoch(epoch=0, global_step=8, num_steps=8, read=lambda: (0.25, 0.75)))
    >>> log(EndTraining("completed"))
    >>> print(path.read_text())
    kind,epoch,step,global_step,seconds,examples,loss,accuracy
    epoch,0,8,8,...,0,0.25,0.75
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every_steps: int = 10,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
    ) -> None:
        super().__init__(path, every_steps, names, name_scalars, test)
        self._columns: list[str] = []

    def _parse(self, lines: Sequence[bytes]) -> Sequence[Values | None]:
        cells = [next(csv.reader([line.decode()])) for line in lines]
        self._columns = cells[0] if cells else []
        # Whatever the metrics are called, a log of ours begins with these.
        if cells and tuple(self._columns[: len(COLUMNS)]) != COLUMNS:
            raise ValueError(f"its header is {lines[0].decode().strip()!r}")
        rows = [dict(zip(self._columns, line, strict=True)) for line in cells[1:]]
        # None stands for the header, which a resume keeps.
        return [None, *rows] if cells else []

    def _write_row(self, row: Row) -> None:
        # A line of the file is a row, or the header.
        row = {" ".join(name.splitlines()): value for name, value in row.items()}
        columns = self._columns or list(COLUMNS)
        columns = [*columns, *(name for name in row if name not in columns)]
        if not self._columns:
            self._file.append(_format_line(columns))
        elif columns != self._columns:
            # A metric that came up later: the header grows, and with it every row above.
            padding = b"," * (len(columns) - len(self._columns)) + b"\n"
            rows = [line.rstrip(b"\r\n") + padding for line in self._file.lines()[1:]]
            self._file.replace([_format_line(columns), *rows])
        self._columns = columns
        self._file.append(_format_line([row.get(name, "") for name in columns]))


def _format_line(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


class JSONLog(RowLog):
    """Write metrics as JSON lines: one every `every_steps` steps, and one for each epoch.

    The fields are `CSVLog`'s columns, and a resumed run continues its file in the same way. Values
    that are not finite are written as the strings `"nan"`, `"inf"` and `"-inf"`, which `float`
    reads, so every line is valid JSON. Array metrics are nested lists.

    Arguments:
      arrays: whether to write array metrics. Pass `False` if the program returns its predictions:
        otherwise each line holds those of a whole batch.
      path, every_steps, names, test: as for `CSVLog`.

    Raises:
      OSError, ValueError: as for `CSVLog`.

    >>> import pathlib, tempfile
    >>> from penstock.events import BeginTraining, EndEpoch, EndTraining
    >>> path = pathlib.Path(tempfile.mkdtemp(), "log.jsonl")
    >>> log = JSONLog(path)
    >>> log(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    >>> log(EndEpoch(epoch=0, global_step=8, num_steps=8, read=lambda: float("nan")))
    >>> log(EndTraining("completed"))
    >>> print(path.read_text())
    {"kind": "epoch", "epoch": 0, "step": 8, "global_step": 8, ..., "loss": "nan"}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every_steps: int = 10,
        names: Sequence[str] = ("loss",),
        arrays: bool = True,
        test: Test | None = None,
    ) -> None:
        name_metrics = name_values if arrays else name_scalars
        super().__init__(path, every_steps, names, name_metrics, test)

    def _parse(self, lines: Sequence[bytes]) -> Sequence[Values | None]:
        rows = [json.loads(line) for line in lines]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("it is no JSON object")
        return rows

    def _write_row(self, row: Row) -> None:
        self._file.append(json.dumps(encode_json(row), allow_nan=False).encode() + b"\n")

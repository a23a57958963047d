"""The part of `CSVLog` and `JSONLog` that does not depend on the form of a row."""

from __future__ import annotations

import abc
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from penstock.events import (
    BeginTraining,
    EndEpoch,
    EndStep,
    EndTraining,
    Event,
    HandlerState,
    Metrics,
)
from penstock.handlers._arguments import check_test
from penstock.handlers._log_file import LogFile
from penstock.handlers._metric_names import as_names
from penstock.handlers._readings import Reading, Readings
from penstock.handlers._test_results import Test, TestResults

_LOGGER = logging.getLogger("penstock")

COLUMNS = ("kind", "epoch", "step", "global_step", "seconds", "examples")

Row = dict[str, Any]
Values = Mapping[str, Any]
"""Metrics by name, or the cells of a row."""


class RowLog(abc.ABC):
    """Write the rows of a run to a file; of several processes only the first does.

    A write that fails during training is warned of once, and tried again with each later row; what
    cannot be written at the end is an error then. Training goes on meanwhile: days of it must not
    end for a row.

    Arguments:
      path: the file.
      every_steps: the interval of rows for steps; 0 or less for none.
      names: names for unnamed metrics.
      name_metrics: makes a dict by name of metrics and names.
      test: whose results get rows too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_steps: int,
        names: Sequence[str],
        name_metrics: Callable[[Metrics, Sequence[str]], Values],
        test: Test | None,
    ) -> None:
        check_test(type(self).__name__, test)
        self._file = LogFile(type(self).__name__, path)
        self._rows = Rows(every_steps, names, name_metrics, test)
        self._is_open = False
        self._unwritten: list[Row] = []

    @abc.abstractmethod
    def _parse(self, lines: Sequence[bytes]) -> Sequence[Values | None]:
        """Return the row of each line, `None` for a header; raise ValueError at another line."""

    @abc.abstractmethod
    def _write_row(self, row: Row) -> None:
        """Write a row; after an error the file is as it was."""

    def __call__(self, event: Event) -> None:
        """Write the rows that are ready."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        elif self._is_open:
            self._write(self._rows(event))
            if isinstance(event, EndTraining):
                self._end(event)

    def _begin(self, event: BeginTraining) -> None:
        self._is_open, self._unwritten = False, []
        self._file.close()
        if jax.process_index():
            return
        # A new run sets an old file aside; a resumed one goes on in it.
        lines = self._file.open(is_resumed=event.global_step > 0)
        try:
            rows = self._parse(lines)
            # Rows behind the checkpoint are of steps that are made again.
            kept = [row is None or is_before(row, event) for row in rows]
        except (ValueError, KeyError) as error:
            self._file.close()
            raise ValueError(
                f"the log {str(self._file.path)!r} got a line that cannot be read ({error}), "
                "expected the rows of this run. It is resumed, and they go on there. Move the file "
                "away, or choose another path."
            ) from error
        if not all(kept):
            self._replace([line for line, is_kept in zip(lines, kept, strict=True) if is_kept])
        self._rows.begin(event, [row for row, k in zip(rows, kept, strict=True) if row and k])
        self._is_open = True

    def _replace(self, lines: list[bytes]) -> None:
        try:
            self._file.replace(lines)
        except OSError as error:
            self._file.close()
            raise self._file.explain(error) from error

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

    def _end(self, event: EndTraining) -> None:
        error = self._flush()
        self._is_open = False
        self._file.close()
        # The error that ended training is the one to see.
        if error is not None and event.error is None:
            raise self._file.explain(error) from error

    def get_state(self) -> HandlerState:
        """Return the counters for a checkpoint, after writing the rows that are due."""
        if self._is_open:
            self._write(self._rows.take())
        return self._rows.state

    def set_state(self, state: HandlerState) -> None:
        """Restore the counters of seconds and examples."""
        self._rows.state = state


def is_before(row: Values, event: BeginTraining) -> bool:
    """Return whether a row is of a step before `event`: steps after it are trained again."""
    epoch, global_step = int(row["epoch"]), int(row["global_step"])
    if row["kind"] == "epoch":
        return epoch < event.epoch
    # A step's number is that of the step itself, a test's that of the steps done before it.
    return global_step < event.global_step + (row["kind"] == "test")


class Rows:
    """Make rows of events; arguments as of `RowLog`."""

    def __init__(
        self,
        every_steps: int,
        names: Sequence[str],
        name_metrics: Callable[[Metrics, Sequence[str]], Values],
        test: Test | None,
    ) -> None:
        self._every_steps, self._names = every_steps, as_names(names)
        self._name_metrics, self._tests = name_metrics, TestResults(test)
        self._readings = Readings(every_steps)
        self._base = (0.0, 0)  # seconds and examples before this call of `train`
        self._start: float | None = None
        self._last_step = (0, 0)  # epoch and step
        self._global_step = 0

    def begin(self, event: BeginTraining, kept: Sequence[Values]) -> None:
        """Begin, or go on counting after the rows that were kept."""
        if not event.global_step:
            self._base = (0.0, 0)
        # A further call of `train`, or a resume whose state this object was given.
        elif self._global_step == event.global_step:
            self._base = self._count()
        else:
            # A resume without that state: seconds and examples go on from the file's last row.
            last = kept[-1] if kept else {"seconds": 0.0, "examples": 0}
            self._base = float(last["seconds"]), int(last["examples"])
        tested = [int(row["global_step"]) for row in kept if row["kind"] == "test"]
        self._tests.begin(max(tested, default=-1))
        self._global_step, self._start = event.global_step, time.monotonic()
        self._readings(event)

    def __call__(self, event: Event) -> list[Row]:
        """Return the rows to write at an event that is not `BeginTraining`."""
        reading = self._readings(event)
        rows = [] if reading is None else [self._make_step_row(reading)]
        match event:
            case EndStep():
                self._last_step = (event.epoch, event.step)
                self._global_step = event.global_step + 1
            case EndEpoch():
                numbers = (event.epoch, event.num_steps, event.global_step)
                rows.append(self._make_row("epoch", numbers, self._count()[1], event.metrics))
        for global_step, metrics in self._tests(event):
            numbers = (*self._last_step, global_step)
            rows.append(self._make_row("test", numbers, self._count()[1], metrics))
        if isinstance(event, EndTraining):
            self._base, self._start = self._count(), None
            self._readings = Readings(self._every_steps)
        return rows

    def take(self) -> list[Row]:
        """Return at once the rows that would come after the next launch."""
        reading = self._readings.take()
        return [] if reading is None else [self._make_step_row(reading)]

    @property
    def state(self) -> HandlerState:
        """Steps, seconds and examples of the run so far, for a checkpoint."""
        seconds, examples = self._count()
        return {"global_step": self._global_step, "seconds": seconds, "examples": examples}

    @state.setter
    def state(self, state: HandlerState) -> None:
        self._readings = Readings(self._every_steps)
        if self._start is not None:  # BeginTraining was there already
            self._start = time.monotonic()
        self._global_step = int(state["global_step"])
        self._base = float(state["seconds"]), int(state["examples"])

    def _count(self) -> tuple[float, int]:
        """Return seconds and examples of the run so far."""
        seconds = 0.0 if self._start is None else time.monotonic() - self._start
        return self._base[0] + seconds, self._base[1] + self._readings.num_examples

    def _make_step_row(self, reading: Reading) -> Row:
        numbers = (reading.epoch, reading.step, reading.global_step)
        examples = self._base[1] + reading.num_examples
        row = self._make_row("step", numbers, examples, reading.metrics)
        first = {name: row.pop(name) for name in COLUMNS}
        # A metric of the same name stays, and the program knows it better.
        return {**first, **reading.rates, **reading.norms, **row}

    def _make_row(
        self, kind: str, numbers: tuple[int, ...], examples: int, metrics: Metrics
    ) -> Row:
        row: Row = {"kind": kind, "epoch": numbers[0], "step": numbers[1]}
        row |= {"global_step": numbers[2], "seconds": round(self._count()[0], 6)}
        row["examples"] = examples
        for name, value in self._name_metrics(metrics, self._names).items():
            # A metric that is called like one of our columns keeps a column of its own.
            row[f"metric {name}" if name in COLUMNS else name] = value
        return row

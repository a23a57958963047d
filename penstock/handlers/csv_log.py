"""`CSVLog`: the metrics of a run as a table that spreadsheets and pandas read."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.handlers._log_file import LogFile
from penstock.handlers._names import named
from penstock.handlers._row_log import RowLog
from penstock.handlers._rows import COLUMNS, Row, Rows
from penstock.handlers._tests import Test


class CSVLog:
    """Write metrics to a CSV file: a row every `every_steps` steps, and one for each epoch.

    Columns: `kind` (`step`, `epoch` or `test`), `epoch`, `step`, `global_step`, `seconds` and
    `examples` of the run so far, then the metrics. In a row for a step `step` and `global_step` are
    that step's numbers; in one for an epoch they count its steps and all steps, and the metrics are
    the epoch's means; a test's `global_step` counts the steps done before it. A metric with a
    column's name is called `metric step` and so on. Metrics that come up later get a column then.

    Rows are written whole, one launch late, and are in the file when the next checkpoint is saved.
    A run that is resumed (`global_step` above 0) goes on in its file: rows of steps that are
    trained again are removed first. A new run begins a new file, and the old one keeps its rows
    under the next free name of `path.1`, `path.2`, ... With several processes the first writes.

    Arguments:
      path: the file; folders on the way are made.
      every_steps: the interval; 0 or less writes epochs only.
      names: names for the values of a program function that returns a tuple, a list or a single
        value; those beyond are called `metric_1` by their position. A dict brings its own names.
      test: an `Evaluate` of the same run, whose results get rows; or a function that is called at
        the end of each epoch and returns metrics.

    Raises:
      OSError: at `BeginTraining`, when the file cannot be written. A write that fails later is
        warned of and tried again; at the end of training it is an error.
      ValueError: a resumed run found another program's file.

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
        rows = Rows(every_steps, names, named, test)
        self._log = RowLog(LogFile("CSVLog", path), _Form(), rows)

    def __call__(self, event: Any) -> None:
        """Take note of an event, and write the rows it brings."""
        self._log(event)

    def get_state(self) -> dict[str, Any]:
        """Return what a resumed run counts on from; the rows up to here are in the file then."""
        return self._log.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on counting seconds and examples from a state."""
        self._log.set_state(state)


class _Form:
    """Rows as CSV, below a header that grows."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def parse(self, lines: Sequence[bytes]) -> list[Mapping[str, Any] | None]:
        cells = [next(csv.reader([line.decode()])) for line in lines]
        self._columns = cells[0] if cells else []
        if cells and tuple(self._columns[: len(COLUMNS)]) != COLUMNS:
            raise ValueError(f"its header is {lines[0].decode().strip()!r}")
        rows = [dict(zip(self._columns, line, strict=True)) for line in cells[1:]]
        return [None, *rows] if cells else []

    def write(self, file: LogFile, row: Row) -> None:
        columns = self._columns or list(COLUMNS)
        columns = [*columns, *(name for name in row if name not in columns)]
        if not self._columns:
            file.append(_line(columns))
        elif columns != self._columns:
            padding = b"," * (len(columns) - len(self._columns)) + b"\n"
            rows = [line.rstrip(b"\r\n") + padding for line in file.lines()[1:]]
            file.replace([_line(columns), *rows])
        self._columns = columns
        file.append(_line([row.get(name, "") for name in columns]))


def _line(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()

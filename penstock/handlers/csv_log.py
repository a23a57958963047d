"""`CSVLog`: the metrics of a run as a table that spreadsheets and pandas read."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence

from penstock.handlers._metric_names import name_scalars
from penstock.handlers._row_log import COLUMNS, Row, RowLog, Values
from penstock.handlers._test_results import Test


class CSVLog(RowLog):
    """Write metrics to a CSV file: a row every `every_steps` steps, and one for each epoch.

    Columns: `kind` (`step`, `epoch` or `test`), `epoch`, `step`, `global_step`, then `seconds` and
    `examples` since the run began, then the metrics.

    - A `step` row has the numbers and metrics of that step.
    - An `epoch` row has the number of steps in the epoch, the steps done in all, and the means of
      the metrics over the epoch.
    - A `test` row has the steps done before the test.

    A metric with the name of a column gets a prefix, such as `metric step`. A metric that first
    appears later adds a column.

    Rows are written one launch late, always whole, and before each checkpoint is saved. A resumed
    run continues its file; rows of steps that are trained again are removed first. A new run starts
    a new file and renames the old one to the next free of `path.1`, `path.2`, ... If there are
    several processes, the first one writes.

    Arguments:
      path: the file; missing folders are created.
      every_steps: the interval in steps; 0 or less writes epochs only.
      names: names for the values of a program function that returns a single value, a tuple or a
        list; further values are called `metric_1`, `metric_2` by position. A dict has its own.
      test: an `Evaluate` of the same run, or a function that returns metrics, called at the end of
        each epoch. Its results get rows.

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

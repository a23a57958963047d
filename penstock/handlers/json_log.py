"""`JSONLog`: the metrics of a run as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from penstock.handlers._metric_names import encode_json, name_scalars, name_values
from penstock.handlers._row_log import Row, RowLog, Values
from penstock.handlers._test_results import Test


class JSONLog(RowLog):
    """Write metrics as lines of JSON: one every `every_steps` steps, and one for each epoch.

    Its lines have the fields of `CSVLog`'s columns, and go on after a resume the same way. Numbers
    that are not finite are the strings `"nan"`, `"inf"` and `"-inf"`, which Python's `float` reads:
    every line is valid JSON. Metrics with axes are nested lists.

    Arguments:
      path: the file; folders on the way are made.
      every_steps: the interval; 0 or less writes epochs only.
      names: names for the values of a program function that returns a tuple, a list or a single
        value; those beyond are called `metric_1` by their position. A dict brings its own names.
      arrays: whether metrics with axes are written. `False` suits a program that returns its
        predictions, of which every line would hold a batch.
      test: an `Evaluate` of the same run, whose results get lines; or a function that is called at
        the end of each epoch and returns metrics.

    Raises:
      OSError: at `BeginTraining`, when the file cannot be written. A write that fails later is
        warned of and tried again; at the end of training it is an error.
      ValueError: a resumed run found another program's file.

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
        # nan and infinity are strings: JSON has no such numbers, and other readers refuse Python's.
        self._file.append(json.dumps(encode_json(row), allow_nan=False).encode() + b"\n")

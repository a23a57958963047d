"""`JSONLog`: the metrics of a run as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from penstock.handlers._metric_names import encode_json, name_scalars, name_values
from penstock.handlers._row_log import Row, RowLog, Values
from penstock.handlers._test_results import Test


class JSONLog(RowLog):
    """Write metrics as JSON lines: one every `every_steps` steps, and one for each epoch.

    The fields are `CSVLog`'s columns, and a resumed run continues its file in the same way. Values
    that are not finite are written as the strings `"nan"`, `"inf"` and `"-inf"`, which `float`
    reads, so every line is valid JSON. Array metrics are nested lists.

    Arguments:
      path: the file; missing folders are created.
      every_steps: the interval in steps; 0 or less writes epochs only.
      names: names for the values of a program function that returns a single value, a tuple or a
        list; further values are called `metric_1`, `metric_2` by position. A dict has its own.
      arrays: whether to write array metrics. Pass `False` if the program returns its predictions:
        otherwise each line holds those of a whole batch.
      test: an `Evaluate` of the same run, or a function that returns metrics, called at the end of
        each epoch. Its results get lines.

    Raises:
      OSError: at `BeginTraining`, if the file cannot be written. A later write that fails is logged
        as a warning and tried again; if it still fails at the end of training, it is an error.
      ValueError: a resumed run found a file of another program.

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

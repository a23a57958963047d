"""`JSONLog`: the metrics of a run as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.handlers._json import encoded
from penstock.handlers._log_file import LogFile
from penstock.handlers._names import named
from penstock.handlers._row_log import RowLog
from penstock.handlers._rows import Row, Rows
from penstock.handlers._tests import Test


class JSONLog:
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
        rows = Rows(every_steps, names, _all_named if arrays else named, test)
        self._log = RowLog(LogFile("JSONLog", path), _Form(), rows)

    def __call__(self, event: Any) -> None:
        """Take note of an event, and write the lines it brings."""
        self._log(event)

    def get_state(self) -> dict[str, Any]:
        """Return what a resumed run counts on from; the lines up to here are in the file then."""
        return self._log.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on counting seconds and examples from a state."""
        self._log.set_state(state)


class _Form:
    """Rows as JSON objects, one a line."""

    def parse(self, lines: Sequence[bytes]) -> list[Mapping[str, Any] | None]:
        rows = [json.loads(line) for line in lines]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("it is no JSON object")
        return rows

    def write(self, file: LogFile, row: Row) -> None:
        text = json.dumps({name: encoded(value) for name, value in row.items()}, allow_nan=False)
        file.append(text.encode() + b"\n")


def _all_named(metrics: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of metrics, arrays included, by the names that `named` gives scalars."""
    values: list[Any] = []

    def numbered(part: Any) -> Any:
        """Put a number in the place of every value."""
        if part is None:
            return None
        if isinstance(part, Mapping):
            return {key: numbered(value) for key, value in part.items()}
        if isinstance(part, tuple | list):
            return [numbered(value) for value in part]
        values.append(part)
        return len(values) - 1

    return {name: values[int(number)] for name, number in named(numbered(metrics), names).items()}

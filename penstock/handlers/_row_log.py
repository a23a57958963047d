"""A log of rows, whatever the form of a row: what `CSVLog` and `JSONLog` have in common."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.events import BeginTraining, EndTraining
from penstock.handlers._log_file import LogFile
from penstock.handlers._rows import Row, Rows, is_before

_LOGGER = logging.getLogger("penstock")


class Form(Protocol):
    """How rows are written."""

    def parse(self, lines: Sequence[bytes]) -> list[Mapping[str, Any] | None]:
        """Return the row of each line, `None` for a header; raises ValueError at another line."""
        ...

    def write(self, file: LogFile, row: Row) -> None:
        """Write a row; after an error the file is as it was."""
        ...


class RowLog:
    """Write the rows of a run to a file; the first process alone does.

    A write that fails during training is warned of, once, and tried again with each later row; what
    cannot be written at the end is an error then. Training goes on meanwhile: days of it must not
    end for a row.
    """

    def __init__(self, file: LogFile, form: Form, rows: Rows) -> None:
        self._file, self._form, self._rows = file, form, rows
        self._is_open = False
        self._unwritten: list[Row] = []

    def __call__(self, event: Any) -> None:
        """Write the rows that an event brings."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        elif self._is_open:
            self._write(self._rows(event))
            if isinstance(event, EndTraining):
                self._end(event)

    def _begin(self, event: BeginTraining) -> None:
        from jax import process_index  # jax is loaded by now

        self._is_open, self._unwritten = False, []
        self._file.close()
        if process_index():
            return
        lines = self._file.open(is_resumed=event.global_step > 0)
        try:
            rows = self._form.parse(lines)
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
            raise self._file.described(error) from error

    def _write(self, rows: Sequence[Row]) -> None:
        had_failed = bool(self._unwritten)
        self._unwritten += rows
        error = self._flush() if rows else None
        if error is not None and not had_failed:
            _LOGGER.warning("%s Training goes on without it.", self._file.described(error))

    def _flush(self) -> OSError | None:
        """Write what is not written yet; return the error that stopped it."""
        try:
            while self._unwritten:
                self._form.write(self._file, self._unwritten[0])
                del self._unwritten[0]
        except OSError as error:
            return error
        return None

    def _end(self, event: EndTraining) -> None:
        error = self._flush()
        self._is_open = False
        self._file.close()
        if error is not None and event.error is None:
            raise self._file.described(error) from error

    def get_state(self) -> dict[str, Any]:
        """Return where counting stands; the rows up to here are in the file then."""
        if self._is_open:
            self._write(self._rows.take())
        return self._rows.state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on counting from a state."""
        self._rows.state = state

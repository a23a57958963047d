"""The table of a sweep's trials, a CSV file in its folder: numbers there are whole."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from penstock.commands._run_folder.runs import read_rows, write_rows

NUM_FACTS = 4
"""Columns before the values that were searched: trial, state, metric and epochs."""
_FILE = "trials.csv"


def write_trials(folder: Path, table: Sequence[Sequence[str]]) -> None:
    write_rows(folder / _FILE, table)


def read_trials(folder: Path) -> list[list[str]]:
    """Return the table in a folder, its head first; empty where it is no folder of a sweep."""
    return read_rows(folder / _FILE)


def format_table(table: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return a table for people to read.

    >>> format_table([("trial", "accuracy"), ("trial_000", "0.97502")])[1]
    ('trial_000', '97.50%')
    """
    head, *rows = table
    return [
        tuple(head),
        *(tuple(map(_format_cell, head, row)) for row in rows),
    ]


def _format_cell(name: str, text: str) -> str:
    with contextlib.suppress(ValueError):
        if name == "accuracy":
            return f"{float(text):.2%}"
        # An integer stays whole.
        return text if text.isdigit() else f"{float(text):.4g}"
    return text

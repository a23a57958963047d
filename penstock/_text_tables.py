"""Rows of text in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align_rows(rows: Sequence[Sequence[str]], *, right: Collection[int]) -> list[str]:
    """Return lines of columns with two spaces between; the columns numbered `right` stand right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if number in right else f"{cell:<{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

"""Text in columns, and text in lines that fit a terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from typing import TextIO

_MIN_COLUMNS = 20
_GAP = 2
# Narrower columns would have a word a line.
_MIN_WIDTH = 10
# Control characters, with those of C1; line breaks of other alphabets; what turns the direction of
# writing; and bytes of a file's name that are no text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape(text: str) -> str:
    r"""Return text with escapes in place of what a terminal obeys or cannot show.

    Names of files and classes come from folders of others.

    >>> print(escape("a dog \x1b[2J"), escape("Füchse 🦊"))
    a dog \x1b[2J Füchse 🦊
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def align_rows(rows: Sequence[Sequence[str]], *, right: Collection[int]) -> list[str]:
    """Return lines of columns with two spaces between; the columns numbered `right` stand right."""
    rows = [[escape(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if number in right else f"{cell:<{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int]
) -> None:
    """Print a table: drawn in a terminal, else as aligned text that `grep` and `awk` take.

    Where a terminal is too narrow, cells are broken at blanks and after slashes, but not those of
    the columns numbered `right`, which are numbers.
    """
    # It takes 0.1 s to import, which a command without a table has no need of.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print("\n".join(align_rows([head, *rows], right=right)))
        return
    rows = [[escape(cell) for cell in row] for row in rows]
    widths = _fit_widths([head, *rows], right, console.width)
    table = Table(
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        header_style="bold",
        row_styles=("", "dim"),
    )
    for number, name in enumerate(head):
        table.add_column(
            name,
            justify="right" if number in right else "left",
            no_wrap=number in right,
            overflow="fold",
            style="bold" if number == 0 else None,
        )
    for row in rows:
        cells = [_break_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        # As text: rich would take brackets, as in a shape, for markup.
        table.add_row(*map(Text, cells))
    console.print(table)


def _fit_widths(rows: Sequence[Sequence[str]], right: Collection[int], columns: int) -> list[int]:
    """Return the widths of a table's columns: the widest give way until they fit together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = [number for number in range(len(widths)) if number not in right]
    while left and sum(widths) + _GAP * (len(widths) - 1) > columns:
        widest = max(left, key=lambda number: widths[number])
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _break_cell(cell: str, width: int) -> str:
    r"""Return a cell in lines of at most `width`; a word that is longer is left as it is.

    >>> _break_cell("Mixed_5b/Branch_0/Conv2d_0a_1x1/norm", 20)
    'Mixed_5b/Branch_0/\nConv2d_0a_1x1/norm'
    """
    lines = [""]
    for word in re.findall(r"[^\s/]*/|[^\s/]+\s*|\s+", cell):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def scale_bytes(count: float) -> str:
    """Return a number of bytes in the largest unit of which it is one.

    >>> scale_bytes(3 * 2**20)
    '3 MiB'
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.4g} {units[0]}"


def find_columns(file: TextIO | None = None) -> int | None:
    """Return how many columns a terminal, or `COLUMNS`, has; None where the output is none."""
    file = sys.stdout if file is None else file
    if file is None or not file.isatty():
        return None
    return max(shutil.get_terminal_size().columns, _MIN_COLUMNS)


def wrap_words(text: str, columns: int | None, indent: str = "") -> str:
    """Return text in lines of at most so many columns, broken at blanks only.

    A longer word, such as a path, is never cut. None for columns leaves the text as it is; `indent`
    is what lines from the second on begin with.

    >>> print(wrap_words("loss 0.125, accuracy 0.75", 14, "  "))
    loss 0.125,
      accuracy
      0.75
    """
    text = escape(text)
    if columns is None or len(text) <= columns:
        return text
    return textwrap.fill(
        text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def wrap_parts(parts: Sequence[str], columns: int | None, indent: str = "  ") -> str:
    """Return parts one behind the other, in lines of at most so many columns.

    A line is broken between parts, and a longer part at blanks. The parts have the blanks before
    them.

    >>> print(wrap_parts(["epoch 1/5", "  loss 0.125 (test 0.5)", "  accuracy 0.75"], 36))
    epoch 1/5  loss 0.125 (test 0.5)
      accuracy 0.75
    """
    lines = [""]
    for part in parts:
        if columns is None or len(lines[-1]) + len(part) <= columns or not lines[-1]:
            lines[-1] += part
        else:
            lines.append(indent + part.lstrip())
    return "\n".join(wrap_words(line, columns, indent) for line in lines)


def wrap_clauses(text: str, columns: int | None, indent: str = "  ") -> str:
    """Return text in lines of at most so many columns, broken after commas where there are some.

    >>> print(wrap_clauses("loss 0.125, accuracy 0.75", 20))
    loss 0.125,
      accuracy 0.75
    """
    # Not those in a number.
    return wrap_parts(re.split(r"(?<=[,;])(?= )", text), columns, indent)

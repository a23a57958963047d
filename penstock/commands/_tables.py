"""Tables for a person at a terminal, and for whatever reads the output elsewhere."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from penstock._text_tables import align_rows, escape

_GAP = 2
# Narrower columns would have a word a line.
_MIN_WIDTH = 10


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int]
) -> None:
    """Print a table: drawn in a terminal, else as aligned text that `grep` and `awk` take.

    In a terminal that is too narrow, cells have several lines: they are broken at blanks and after
    slashes. Those of the columns that stand right, which are numbers, are not.

    Arguments:
      right: the numbers of the columns that stand right.
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

"""Tables for a person at a terminal, and for whatever reads the output elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock._text_tables import align_rows


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int]
) -> None:
    """Print a table: drawn in a terminal, else as aligned text that `grep` and `awk` take.

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
    table = Table(box=None, pad_edge=False, header_style="bold", row_styles=("", "dim"))
    for number, name in enumerate(head):
        table.add_column(
            name,
            justify="right" if number in right else "left",
            no_wrap=number in right,
            overflow="fold",
            style="bold" if number == 0 else None,
        )
    for row in rows:
        # As text: rich would take brackets, as in a shape, for markup.
        table.add_row(*map(Text, row))
    console.print(table)

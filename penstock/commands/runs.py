"""`penstock runs`: the runs in a folder, with their best tests."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from penstock._json_values import encode_json
from penstock._text_tables import align_rows, escape, find_columns, wrap_words
from penstock.commands._argument_parser import parse, positional
from penstock.commands._failures import command
from penstock.commands._run_folder.runs import FoundRun, describe_differences, find_runs

_HEAD = ("run", "data", "network", "best", "steps", "started", "state")
_RIGHT = (3, 4)
# What a narrow terminal does without, one after the other.
_LEFT_OUT = ("started", "data", "network")
_EXAMPLES = """examples:
  penstock runs
  penstock runs experiments
  penstock runs --json"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsFlags:
    """List the runs in a folder, with their best test and the flags that differ.

    Arguments:
      folder: the folder of the runs; by default runs if there is one, else the current folder.
      json: print JSON, for programs to read.
    """

    folder: str | None = positional("FOLDER", "?")
    json: bool = False


@command()
def run(argv: list[str]) -> None:
    """Run `penstock runs` with the arguments after the command's name."""
    flags, _ = parse(RunsFlags, argv, epilog=_EXAMPLES)
    folder = Path(flags.folder or ("runs" if Path("runs").is_dir() else "."))
    runs = find_runs(folder)
    if flags.json:
        print(json.dumps(encode_json([run.to_json() for run in runs]), indent=2))
    elif runs:
        _print(folder, runs)
    else:
        print(f"no runs in {escape(str(folder))}. `penstock train` makes one.")


def _print(folder: Path, runs: Sequence[FoundRun]) -> None:
    rows = [
        (
            str(run.path.relative_to(folder) if run.path != folder else folder),
            run.data,
            run.network,
            run.describe_best(),
            f"{run.num_steps:,}",
            f"{run.started:%Y-%m-%d %H:%M}",
            run.state,
        )
        for run in runs
    ]
    differences = [describe_differences(run, runs) for run in runs]
    columns = find_columns()
    head, ends = (*_HEAD, "flags that differ"), zip(rows, differences, strict=True)
    wide = align_rows([head, *((*row, end) for row, end in ends)], right=_RIGHT)
    if columns is None or max(map(len, wide)) <= columns:
        print("\n".join(wide))
        return
    title, *lines = _fit(rows, columns)
    print(wrap_words(title, columns))
    for line, difference in zip(lines, differences, strict=True):
        print(wrap_words(line, columns, "  "))
        if difference:
            print(wrap_words(f"  {difference}", columns, "  "))


def _fit(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Return aligned lines, the head first, without the columns that there is no room for."""
    table, lines = [_HEAD, *map(tuple, rows)], [""]
    for name in (*_LEFT_OUT, ""):
        right = [table[0].index(_HEAD[number]) for number in _RIGHT]
        lines = align_rows(table, right=right)
        if not name or max(map(len, lines)) <= columns:
            break
        number = table[0].index(name)
        table = [(*row[:number], *row[number + 1 :]) for row in table]
    return lines

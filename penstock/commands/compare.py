"""`penstock compare`: flags and results of runs, side by side."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from penstock._json_values import encode_json
from penstock._text_tables import align_rows, escape, find_columns, wrap_words
from penstock.commands._argument_parser import parse, positional
from penstock.commands._failures import UsageError, command
from penstock.commands._run_folder.folder import read_answers
from penstock.commands._run_folder.runs import FoundRun, find_rows, list_differences, read_run

_EXAMPLES = """examples:
  penstock compare runs/digits_lenet runs/digits_lenet-2
  penstock compare runs/* --json"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """Put the flags that differ between runs side by side, with the results.

    Arguments:
      runs: the folders of two or more runs.
      json: print JSON, for programs to read.
    """

    runs: tuple[str, ...] = positional("RUN", "+")
    json: bool = False

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise UsageError(
                f"got one run, {''.join(self.runs)!r}, expected two or more to compare. "
                "`penstock runs` lists them."
            )


@command()
def run(argv: list[str]) -> None:
    """Run `penstock compare` with the arguments after the command's name."""
    flags, _ = parse(CompareFlags, argv, epilog=_EXAMPLES)
    runs = [read_run(Path(name)) for name in flags.runs]
    differing = list_differences(runs)
    if flags.json:
        facts = [
            run.to_json() | {"flags": {n: run.flags.get(n) for n in differing}} for run in runs
        ]
        print(json.dumps(encode_json(facts), indent=2))
        return
    names = [run.path.name or str(run.path) for run in runs]
    # Of equal names the paths.
    names = [str(run.path) if names.count(n) > 1 else n for run, n in zip(runs, names, strict=True)]
    table = [("run", *names), *_rows(runs, differing)]
    parts = [align_rows(p, right=range(1, len(p[0]))) for p in _split(table, find_columns())]
    # A blank line between parts, which have the names of the rows again.
    print("\n\n".join(map("\n".join, parts)))
    for line in _describe_chance(runs, list(map(escape, names))):
        print(f"\n{wrap_words(line, find_columns())}")


def compare_answers(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float, float]:
    """Compare whether two networks are right about the same images, `[N]` each.

    Source: McNemar, "Note on the Sampling Error of the Difference Between Correlated Proportions",
    1947.

    Returns:
      The difference of the second one's accuracy to the first one's; the ends of its interval, with
      a confidence of 95 %; and how likely networks that are equally good differ as much, by
      McNemar's exact test.

    >>> first, second = np.arange(100) >= 20, np.arange(100) >= 8
    >>> [round(x, 4) for x in compare_answers(first, second)]
    [0.12, 0.0563, 0.1837, 0.0005]
    """
    from scipy.special import bdtr

    number, gained, lost = len(first), int(sum(second & ~first)), int(sum(first & ~second))
    chance = min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))
    difference = (gained - lost) / number
    variance = (gained + lost) / number**2 - difference**2 / number
    half = NormalDist().inv_cdf(0.975) * math.sqrt(variance)
    return difference, difference - half, difference + half, chance


def _describe_chance(runs: Sequence[FoundRun], names: Sequence[str]) -> list[str]:
    """Return sentences on whether runs on the same images differ by more than chance."""
    by_path = {str(run.path): read_answers(run.path) for run in runs}
    if todo := [path for path, answers in by_path.items() if answers is None]:
        evals = ", ".join(f"`penstock eval {escape(shlex.quote(path))}`" for path in todo)
        return [f"Do they differ by more than chance? It needs their answers: {evals}."]
    lines: list[str] = []
    first, *later = (answers for run in runs if (answers := by_path[str(run.path)]) is not None)
    for name, second in zip(names[1:], later, strict=True):
        if first[:2] != second[:2] or not np.array_equal(first.label, second.label):
            lines.append(f"{names[0]} and {name} were evaluated on different images.")
            continue
        right = [answer.predicted == answer.label for answer in (first, second)]
        difference, low, high, chance = compare_answers(*right)
        verdict = "more than chance" if chance < 0.05 else "no more than chance"
        lines.append(
            f"Of the same {len(first.label):,} images {names[0]} is right about "
            f"{right[0].sum():,}, {name} about {right[1].sum():,}: {difference:+.2%} ({low:+.2%} "
            f"to {high:+.2%} with 95 % confidence), {verdict} (p = {chance:.2g})."
        )
    return lines


def _rows(runs: Sequence[FoundRun], differing: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for each fact: its name, and what it is of each run."""
    names = ("seconds", "last train loss", "last test loss", "last test accuracy")
    ends = [_read_end(run) for run in runs]
    rows = [
        ("data", *(run.data for run in runs)),
        ("network", *(run.network for run in runs)),
        *((f"--{name}", *(str(run.flags.get(name, "")) for run in runs)) for name in differing),
        ("state", *(run.state for run in runs)),
        ("steps", *(f"{run.num_steps:,}" for run in runs)),
        *((name, *(end.get(name, "") for end in ends)) for name in names),
        ("best test accuracy", *(run.describe_best() for run in runs)),
        ("at step", *("" if run.best_step is None else f"{run.best_step:,}" for run in runs)),
    ]
    return [row for row in rows if any(row[1:])]


def _read_end(run: FoundRun) -> dict[str, str]:
    """Return what the last rows of a run's log say, by the names of the table's rows."""
    if not run.log:
        return {}
    cells = {"seconds": f"{run.log[-1].seconds:,.1f}"}
    for kind, title in (("epoch", "train"), ("step", "train"), ("test", "test")):
        for metric in ("loss", "accuracy"):
            rows = find_rows(run.log, kind, metric)
            # An epoch's mean counts, a step's where no epoch has ended.
            if rows and (name := f"last {title} {metric}") not in cells:
                value = rows[-1].metrics[metric]
                cells[name] = f"{value:.2%}" if metric == "accuracy" else f"{value:.4g}"
    return cells


def _split(table: Sequence[Sequence[str]], columns: int | None) -> list[list[list[str]]]:
    """Return the table in parts of as many runs as stand side by side; whole without a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    parts: list[list[int]] = []
    for number, width in enumerate(widths[1:], start=1):
        used = widths[0] + sum(2 + widths[other] for other in parts[-1]) if parts else 0
        if not parts or (columns is not None and used + 2 + width > columns):
            parts.append([])
        parts[-1].append(number)
    return [[[row[0], *(row[number] for number in part)] for row in table] for part in parts]

"""`penstock plot`: the curves of runs against each other, from their logs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock._errors import UnknownNameError
from penstock.commands._run_log import LogError, RunLog, read_log
from penstock.handlers._extras import require
from penstock.handlers._figure import Line, Panel, check_path, draw

_X_LABELS = {"step": "step", "epoch": "epoch", "seconds": "seconds of training"}


def run(argv: list[str]) -> int:
    """Run `penstock plot` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the picture was drawn, 1 when it could not be written, 2 when an
      argument was wrong: no such run, no such metric.
    """
    flags = _parser().parse_args(argv)
    try:
        path = check_path("--output", flags.output)
        runs = [read_log(name) for name in flags.runs]
        panels = [_panel(runs, metric, flags) for metric in flags.metric or ["loss"]]
    except (ValueError, UnknownNameError) as error:
        print(f"penstock plot: {error}", file=sys.stderr)
        return 2
    try:
        require("matplotlib", "plot", "penstock plot")
        draw(path, panels)
    except (OSError, ModuleNotFoundError) as error:
        print(f"penstock plot: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock plot",
        description="Draw the curves of runs against each other. Metrics of steps are smoothed "
        "over the values themselves; results of tests are dashed.",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a log of CSVLog or JSONLog, or its folder")
    add("--output", default="curves.png", help="the picture: .png, .svg or .pdf")
    add("--metric", action="append", help="what to draw, loss by default; again for more panels")
    add("--x", choices=list(_X_LABELS), default="step", help="the horizontal axis")
    add("--log", action="store_true", help="a logarithmic vertical axis")
    return parser


def _panel(runs: Sequence[RunLog], metric: str, flags: argparse.Namespace) -> Panel:
    lines: list[Line] = []
    for color, log in enumerate(runs):
        log.check(metric)
        # A run without rows for steps, or drawn by epoch, has its epochs' means.
        steps = [] if flags.x == "epoch" else log.of("step", metric)
        parts = [(log.name, steps or log.of("epoch", metric), not steps, False)]
        parts.append((f"{log.name} test", log.of("test", metric), True, True))
        for label, rows, has_markers, is_dashed in parts:
            rows = [row for row in rows if math.isfinite(row[metric])]
            if rows:
                lines.append(
                    Line(
                        label=label,
                        x=_x(log, rows, flags.x),
                        y=[row[metric] for row in rows],
                        color=color,
                        has_markers=has_markers,
                        is_dashed=is_dashed,
                    )
                )
    if not lines:
        raise LogError(
            f"the metric {metric!r} got no finite value in {len(runs)} runs, expected at least one."
            " With --x epoch there is one for each epoch that ended. Try --x step."
        )
    return Panel(title=metric, lines=lines, x_label=_X_LABELS[flags.x], is_y_log=flags.log)


def _x(log: RunLog, rows: Sequence[Mapping[str, Any]], kind: str) -> list[float]:
    """Return where rows lie: steps done, seconds, or epochs done and the part of the next."""
    if kind == "seconds":
        return [row["seconds"] for row in rows]
    # A step's number is its own, from 0; epochs and tests count the steps before them.
    done = [row["global_step"] + (row["kind"] == "step") for row in rows]
    if kind == "step":
        return done
    epochs = [row for row in log.rows if row["kind"] == "epoch"]
    if not epochs:
        return [row["epoch"] + 1 for row in rows]
    ends = [0.0, *(row["global_step"] for row in epochs)]
    return np.interp(done, ends, [0.0, *(row["epoch"] + 1 for row in epochs)]).tolist()

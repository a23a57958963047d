"""`penstock plot`: the curves of runs against each other, from their logs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from penstock._errors import UnknownNameError, check_installed
from penstock._text_tables import escape
from penstock.commands._argument_parser import metavar, parse, positional
from penstock.commands._failures import run_command
from penstock.commands._run_log import LogError, Row, RunLog, read_log
from penstock.handlers.figures import Line, Panel, check_path, draw

_X_LABELS = {"step": "step", "epoch": "epoch", "seconds": "seconds of training"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotFlags:
    """Plot the curves of runs in one picture.

    Training metrics are smoothed, with the raw values behind them; test results are dashed.

    Arguments:
      runs: a log of CSVLog or JSONLog, or the folder of a run.
      output: the picture to draw: .png, .svg or .pdf.
      metric: the metric to draw; repeat it to add a panel.
      x: what the horizontal axis shows.
      log: use a logarithmic vertical axis.
    """

    runs: tuple[str, ...] = positional("RUN", "+")
    output: str = metavar("FILE", "curves.png")
    metric: tuple[str, ...] = dataclasses.field(default=("loss",), metadata={"action": "extend"})
    x: Literal["step", "epoch", "seconds"] = "step"
    log: bool = False


def run(argv: list[str]) -> int:
    """Run `penstock plot` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the picture was drawn, 1 when it could not be written, 2 when an
      argument was wrong: no such run, no such metric.
    """
    usage_errors = (ValueError, UnknownNameError)
    return run_command("plot", lambda: _plot(argv), usage_errors=usage_errors)


def _plot(argv: list[str]) -> None:
    flags, _ = parse(PlotFlags, argv, prog="penstock plot")
    path = check_path("--output", flags.output)
    runs = [read_log(name) for name in flags.runs]
    panels = [_panel(runs, metric, flags) for metric in flags.metric]
    # After the arguments were checked, which needs no matplotlib.
    check_installed("matplotlib", "plot", "penstock plot")
    draw(path, panels)
    print(escape(str(path)))


def _panel(runs: Sequence[RunLog], metric: str, flags: PlotFlags) -> Panel:
    lines: list[Line] = []
    for color, log in enumerate(runs):
        log.check(metric)
        # A run without rows for steps, or drawn by epoch, has its epochs' means.
        steps = [] if flags.x == "epoch" else log.find_rows("step", metric)
        parts = [(log.name, steps or log.find_rows("epoch", metric), not steps, False)]
        parts.append((f"{log.name} test", log.find_rows("test", metric), True, True))
        for label, rows, has_markers, is_dashed in parts:
            rows = [row for row in rows if math.isfinite(row.metrics[metric])]
            if rows:
                lines.append(
                    Line(
                        label=escape(label),
                        x=_find_x(log, rows, flags.x),
                        y=[row.metrics[metric] for row in rows],
                        color=color,
                        has_markers=has_markers,
                        is_dashed=is_dashed,
                    )
                )
    if not lines:
        hint = " With --x=epoch there is one for each epoch that ended. Try --x=step."
        hint = hint if flags.x == "epoch" else " NaN and infinite values are not drawn."
        raise LogError(
            f"the metric {metric!r} got no finite value in {len(runs)} run"
            f"{'s' if len(runs) > 1 else ''}, expected at least one.{hint}"
        )
    return Panel(title=metric, lines=lines, x_label=_X_LABELS[flags.x], is_y_log=flags.log)


def _find_x(log: RunLog, rows: Sequence[Row], axis: str) -> list[float]:
    """Return where rows lie: steps done, seconds, or epochs done and the part of the next."""
    if axis == "seconds":
        return [row.seconds for row in rows]
    # The number of a step counts from 0; epochs and tests say how many steps were done.
    done = [row.global_step + (row.kind == "step") for row in rows]
    if axis == "step":
        return done
    epochs = [row for row in log.rows if row.kind == "epoch"]
    if not epochs:
        return [row.epoch + 1 for row in rows]
    ends = [0.0, *(row.global_step for row in epochs)]
    return np.interp(done, ends, [0.0, *(row.epoch + 1 for row in epochs)]).tolist()

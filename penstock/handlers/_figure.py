"""Curves as a picture, without pyplot: no window, no state shared with the user's own plots."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.handlers._curve import smoothed

FORMATS = (".png", ".svg", ".pdf")

_NUM_COLUMNS = 3
_PANEL_INCHES = (4.6, 3.4)
_MIN_SMOOTHED_POINTS = 20  # fewer show what they are by themselves
_MAX_MARKED_POINTS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A curve: its name in the legend, its points, and how it is drawn.

    `color` counts matplotlib's cycle. Points that stand for whole epochs or tests are drawn with
    markers; of the others, many and noisy, a smoothed line is drawn over a faint one.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    has_markers: bool = False
    is_dashed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves of one metric on common axes; `mark` is a value of x to point out, with its text."""

    title: str
    lines: Sequence[Line]
    x_label: str = "step"
    is_x_log: bool = False
    is_y_log: bool = False
    mark: tuple[float, str] | None = None


def check_path(owner: str, path: str | os.PathLike[str]) -> Path:
    """Return the path of a picture.

    Raises:
      ValueError: its suffix is of no format that can be drawn.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(
            f"{owner} got {os.fspath(path)!r}, expected a name that ends in {', '.join(FORMATS)}. "
            "The suffix decides the format."
        )
    return Path(path)


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a file, whose folder is made.

    The file appears whole or not at all: a viewer that reloads it never sees half a picture.
    """
    figure = figure_of(panels)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(temporary, format=path.suffix[1:].lower())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def figure_of(panels: Sequence[Panel]) -> Any:
    """Return a matplotlib figure of at least one panel."""
    from matplotlib.figure import Figure

    num_columns = min(len(panels), _NUM_COLUMNS)
    num_rows = math.ceil(len(panels) / num_columns)
    width, height = _PANEL_INCHES
    # A panel by itself may be wider: steps are many.
    size = (max(num_columns * width, 1.4 * width), num_rows * height)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    for number, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(num_rows, num_columns, number + 1), panel)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        color, num_points = f"C{line.color % 10}", len(line.x)
        if line.has_markers or num_points < _MIN_SMOOTHED_POINTS:
            # Markers that touch each other say no more than the line does.
            marker = "o" if line.has_markers and num_points <= _MAX_MARKED_POINTS else None
            style = "--" if line.is_dashed else "-"
            axes.plot(line.x, line.y, style, c=color, label=line.label, marker=marker, ms=3.5)
        else:
            smooth = smoothed(line.y, num_points / 50)
            axes.plot(line.x, line.y, color=color, alpha=0.35, linewidth=0.9)
            axes.plot(line.x, smooth, color=color, label=line.label, linewidth=1.6)
    if panel.mark is not None:
        x, text = panel.mark
        axes.axvline(x, color="0.35", linestyle="--", linewidth=1, label=text)
    if panel.is_x_log:
        axes.set_xscale("log")
    if panel.is_y_log and any(y > 0 for line in panel.lines for y in line.y):
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel(panel.x_label)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.lines:
        axes.legend(frameon=False, fontsize="small")

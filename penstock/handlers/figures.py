"""Curves as a picture, without pyplot: no window, no state shared with the user's own plots."""

from __future__ import annotations

import copy
import dataclasses
import io
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock._files import expand_path, replacing
from penstock.events import HandlerState

LARGEST_DRAWN = 1e200
"""Margins and ticks of an axis are beyond its values, and have to be floats too."""


def smooth(values: Sequence[float], width: float) -> np.ndarray:
    """Return values smoothed by a Gaussian of standard deviation `width` points, `[N]`.

    It lags behind nowhere; near the ends the mean is over what there is.

    >>> smooth([0.0, 0.0, 1.0, 0.0, 0.0], 0.5).round(2).tolist()
    [0.0, 0.11, 0.79, 0.11, 0.0]
    """
    points = np.asarray(values, float)
    if not points.size:
        return points
    radius = min(max(math.ceil(3 * width), 1), len(points) - 1)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / max(width, 1e-3)) ** 2)
    inside = slice(radius, radius + len(points))
    sums = np.convolve(points, kernel)[inside]
    return sums / np.convolve(np.ones_like(points), kernel)[inside]


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOGGER = logging.getLogger("penstock")
FORMATS = (".png", ".svg", ".pdf")

_INTERVAL_SECS = 5.0
_PAUSE_SECS = 600.0  # after an error in writing
_MAX_SHARE = 0.02  # of the time goes into drawing: a picture of many panels takes half a second
_NUM_COLUMNS = 3
_PANEL_INCHES = (4.6, 3.4)
_MARGIN_INCHES = (0.8, 0.55, 0.15, 0.4)  # left, bottom, right and top of each panel
_MIN_SMOOTHED_POINTS = 20  # fewer show what they are by themselves
_MAX_MARKED_POINTS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A curve, in a color of matplotlib's cycle.

    Few and exact points, as of tests, have markers; of the others a smoothed line is drawn over a
    faint one.
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
    x_ticks: Sequence[float] = ()
    is_x_log: bool = False
    is_y_log: bool = False
    mark: tuple[float, str] | None = None


def check_path(owner: str, path: str | os.PathLike[str], endings: Sequence[str] = FORMATS) -> Path:
    """Return the path of a picture or a page; raise for a folder and a suffix of no format."""
    file = expand_path(path)
    if file.is_dir():
        inside = str(file / f"name{endings[0]}")
        raise ValueError(f"{owner} got the folder {str(file)!r}, expected a file, e.g. {inside!r}.")
    if file.suffix.lower() not in endings:
        raise ValueError(
            f"{owner} got {os.fspath(path)!r}, expected a name that ends in {', '.join(endings)}. "
            "The suffix decides the format."
        )
    return file


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a file, which appears whole; its folder is made."""
    save(make_figure(panels), path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file, whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, warnings.catch_warnings():
        # Letters that the font lacks, as of an emoji, are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, format=path.suffix[1:].lower())


def encode(panels: Sequence[Panel]) -> bytes:
    """Return a PNG of panels side by side."""
    picture = io.BytesIO()
    make_figure(panels).savefig(picture, format="png")
    return picture.getvalue()


def make_figure(panels: Sequence[Panel]) -> Figure:
    """Return a matplotlib figure of at least one panel."""
    from matplotlib.figure import Figure

    num_columns = min(len(panels), _NUM_COLUMNS)
    num_rows = math.ceil(len(panels) / num_columns)
    width, height = _PANEL_INCHES
    # A panel by itself may be wider: steps are many.
    size = (max(num_columns * width, 1.4 * width), num_rows * height)
    figure = Figure(figsize=size, dpi=110)
    # Not layout="constrained", which draws everything twice more to measure it. What matplotlib
    # writes beside an axis by itself, such as -0.00025, fits these.
    left, bottom, right, top = _MARGIN_INCHES
    across, down = size[0] / num_columns - left - right, size[1] / num_rows - bottom - top
    figure.subplots_adjust(
        left=left / size[0],
        bottom=bottom / size[1],
        right=1 - right / size[0],
        top=1 - top / size[1],
        wspace=(left + right) / across,
        hspace=(bottom + top) / down,
    )
    for number, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(num_rows, num_columns, number + 1), panel)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        color, num_points = f"C{line.color % 10}", len(line.x)
        # Tests are few and exact; steps are many and noisy.
        if line.has_markers or num_points < _MIN_SMOOTHED_POINTS:
            # Markers that touch each other say no more than the line does.
            marker = "o" if line.has_markers and num_points <= _MAX_MARKED_POINTS else None
            style = "--" if line.is_dashed else "-"
            axes.plot(line.x, line.y, style, c=color, label=line.label, marker=marker, ms=3.5)
        else:
            curve = smooth(line.y, num_points / 50)
            axes.plot(line.x, line.y, color=color, alpha=0.35, linewidth=0.9)
            axes.plot(line.x, curve, color=color, label=line.label, linewidth=1.6)
    if panel.mark is not None:
        x, text = panel.mark
        axes.axvline(x, color="0.35", linestyle="--", linewidth=1, label=text)
    if panel.is_x_log:
        axes.set_xscale("log")
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks, [f"{x:,}" for x in panel.x_ticks])
        axes.minorticks_off()
    # matplotlib warns of a logarithmic axis without a positive number.
    if panel.is_y_log and any(y > 0 for line in panel.lines for y in line.y):
        axes.set_yscale("log")
    # Names are no formulas: one that matplotlib cannot read would be an error.
    axes.set_title(panel.title, fontsize="medium", parse_math=False)
    axes.set_xlabel(panel.x_label)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.lines:
        for text in axes.legend(frameon=False, fontsize="small").get_texts():
            text.set_parse_math(False)


class RedrawClock:
    """When a file about a run is made again: every few seconds, the rarer the longer it takes."""

    def __init__(self) -> None:
        self._due = 0.0

    def is_due(self) -> bool:
        """Return whether it is time."""
        return time.monotonic() >= self._due

    def begin(self) -> None:
        """Begin to wait."""
        self._due = time.monotonic() + _INTERVAL_SECS

    def try_to(self, draw: Callable[[], None], owner: str, path: object) -> None:
        """Make the file, and time that; an error in writing it must not end a training."""
        start = time.monotonic()
        try:
            draw()
            self._due = time.monotonic() + max(
                _INTERVAL_SECS, (time.monotonic() - start) / _MAX_SHARE
            )
        except OSError as error:
            # A full disk would otherwise be warned of every few seconds.
            self._due = time.monotonic() + _PAUSE_SECS
            _LOGGER.warning("%s could not write %s (%s); training goes on", owner, path, error)


class CurveSet(dict[str, dict[str, "Curve"]]):
    """Curves of `train` and of `test`, each by the metric's name."""

    def __init__(self) -> None:
        super().__init__(train={}, test={})

    def add(self, part: str, name: str, x: float, y: float) -> None:
        """Add a point to a curve."""
        self[part].setdefault(name, Curve()).add(x, y)

    def cut(self, x: float) -> None:
        """Forget the points to the right of `x`: they are of steps that are made again."""
        for curve in (curve for curves in self.values() for curve in curves.values()):
            curve.cut(x)

    def get_state(self) -> HandlerState:
        """Return all points, and where the next ones are due, as JSON holds them."""
        return {
            part: {name: dataclasses.asdict(curve) for name, curve in curves.items()}
            for part, curves in self.items()
        }

    def set_state(self, state: HandlerState) -> None:
        """Go on from a state."""
        for part, curves in self.items():
            curves.clear()
            # The lists are the state's, which its owner may use again.
            curves |= {name: Curve(**copy.deepcopy(own)) for name, own in state[part].items()}


@dataclasses.dataclass
class Curve:
    """Points of a metric by step; when there are too many, every second one goes.

    What is kept are points as they came, evenly spread: a mean of several would show less noise
    than there was. A value that is nan or larger than `LARGEST_DRAWN` is left out.

    >>> curve = Curve(max_points=4)
    >>> for step in range(10):
    ...     curve.add(step, step / 2)
    >>> curve.x, curve.y
    ([0, 4, 8], [0.0, 2.0, 4.0])
    """

    x: list[float] = dataclasses.field(default_factory=list)
    y: list[float] = dataclasses.field(default_factory=list)
    stride: int = 1
    num_skipped: int = 0
    max_points: int = 2000

    def add(self, x: float, y: float) -> None:
        """Add a point to the right of the others."""
        if not abs(y) <= LARGEST_DRAWN:
            return
        if self.x and self.num_skipped + 1 < self.stride:
            self.num_skipped += 1
            return
        self.num_skipped = 0
        self.x.append(x)
        self.y.append(y)
        if len(self.x) > self.max_points:
            # One is left over at the end; it counts as skipped where it is not kept.
            self.num_skipped = self.stride * ((len(self.x) - 1) % 2)
            self.x, self.y = self.x[::2], self.y[::2]
            self.stride *= 2

    def cut(self, x: float) -> None:
        """Forget the points to the right of `x`."""
        count = sum(1 for own in self.x if own <= x)
        if count < len(self.x):
            del self.x[count:], self.y[count:]
            self.num_skipped = 0

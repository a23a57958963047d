"""Curves as inline SVG: metrics of a run by step, and the calibration of its probabilities."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from penstock.handlers.figures import LARGEST_DRAWN, smooth
from penstock.handlers.report.page import Element, add

_WIDTH, _HEIGHT = 420, 244
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 408, 10, 206
# More points than pixels say no more.
_MAX_POINTS = 700
_MIN_SMOOTHED_POINTS = 20

Points = tuple[np.ndarray, np.ndarray]


class Axes:
    """The frame of a diagram, and its points; `label` tells who cannot see it what is drawn."""

    def __init__(
        self, parent: Element, label: str, x: tuple[float, float], y: tuple[float, float]
    ) -> None:
        self._x, self._y = _widen(x), _widen(y)
        self.svg = add(
            parent, "svg", viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label
        )

    def draw_grid(self, x_label: str) -> None:
        """Draw lines at round values, with their numbers, and name the horizontal axis."""
        for value, number in _format_ticks(choose_ticks(*self._y)):
            _, y = self.place(self._x[0], value)
            add(self.svg, "line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid")
            add(self.svg, "text", number, x=_LEFT - 6, y=y + 4, text_anchor="end")
        ticks = choose_ticks(*self._x)
        if x_label == "step":  # there is no half of one
            ticks = [value for value in ticks if value.is_integer()]
        for value, number in _format_ticks(ticks):
            x, _ = self.place(value, self._y[0])
            add(self.svg, "line", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 4, class_="grid")
            add(self.svg, "text", number, x=x, y=_BOTTOM + 17, text_anchor="middle")
        middle = (_LEFT + _RIGHT) / 2
        add(self.svg, "text", x_label, x=middle, y=_HEIGHT - 5, text_anchor="middle")

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where values lie in the drawing; those outside lie on its edge."""
        across = (x - self._x[0]) / (self._x[1] - self._x[0])
        up = (min(max(y, self._y[0]), self._y[1]) - self._y[0]) / (self._y[1] - self._y[0])
        return (
            round(_LEFT + across * (_RIGHT - _LEFT), 1),
            round(_BOTTOM - up * (_BOTTOM - _TOP), 1),
        )

    def draw_line(self, points: Points, style: str) -> None:
        """Draw points as a line."""
        placed = (self.place(x, y) for x, y in zip(*points, strict=True))
        text = " ".join(f"{x:g},{y:g}" for x, y in placed)
        add(self.svg, "polyline", points=text, class_=style)


def choose_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return some `count` round values between two.

    >>> choose_ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """The values of a metric, by how many steps were done: of training and of tests, `[N]` each."""

    name: str
    train: Points
    test: Points


def draw_metrics(parent: Element, metrics: Sequence[Metric], num_left_out: int = 0) -> None:
    """Draw a diagram for each metric, the learning rate last; say how many values are left out."""
    metrics = sorted(metrics, key=lambda metric: metric.name.startswith("learning_rate"))
    key = add(parent, "p", class_="note")
    is_smoothed = any(_is_smoothed(metric) for metric in metrics)
    is_tested = any(len(metric.test[0]) for metric in metrics)
    add(key, "span", "training", class_="train-key").tail = (
        " (smoothed, over the faint values)" * is_smoothed + ", " * is_tested
    )
    if is_tested:
        add(key, "span", "test", class_="test-key").tail = " (dots)"
    add(key, "span", ", by steps done.")
    figures = add(parent, "div", class_="figures")
    num_left_out += sum(_draw_metric(figures, metric) for metric in metrics)
    if num_left_out:
        add(
            parent,
            "p",
            f"Values that are NaN, infinite or beyond {LARGEST_DRAWN:g} are left out: "
            f"{num_left_out:,}.",
            class_="missing",
        )


def _draw_metric(parent: Element, metric: Metric) -> int:
    """Draw one metric; return how many of its values are left out."""
    name = metric.name
    train, test = _keep_drawn(metric.train), _keep_drawn(metric.test)
    num_bad = len(metric.train[0]) + len(metric.test[0]) - len(train[0]) - len(test[0])
    if not len(train[0]) and not len(test[0]):
        return num_bad
    is_smoothed = _is_smoothed(metric)
    curve = smooth(train[1].tolist(), len(train[0]) / 50) if is_smoothed else train[1]
    figure, last = add(parent, "figure"), _describe_last(train[1], test[1])
    add(add(figure, "figcaption"), "b", name.replace("_", " ")).tail = last
    x = np.concatenate([train[0], test[0]])
    # A first loss of a hundred must not flatten all that follows it.
    raw = np.quantile(train[1], [0.02, 0.98]) if len(train[1]) else []
    y = np.concatenate([curve, test[1], raw])
    margin = (y.max() - y.min()) / 20
    limits = y.min() - margin, y.max() + margin
    axes = Axes(figure, f"{name} by step{last}", (min(0.0, float(x.min())), float(x.max())), limits)
    axes.draw_grid("step")
    if is_smoothed:
        axes.draw_line(_thin(train), "raw")
    if len(train[0]):
        axes.draw_line(_thin((train[0], curve)), "train")
    if len(train[0]) == 1:  # a line of one point is not seen
        x_place, y_place = axes.place(train[0][0], train[1][0])
        add(axes.svg, "circle", cx=x_place, cy=y_place, r=3, class_="train-dot")
    if len(test[0]):
        axes.draw_line(_thin(test), "test")
    for step, value in zip(*_thin(test), strict=True):
        x_place, y_place = axes.place(step, value)
        circle = add(axes.svg, "circle", cx=x_place, cy=y_place, r=3)
        add(circle, "title", f"step {step:,.0f}: {value:.6g}")
    return num_bad


def _is_smoothed(metric: Metric) -> bool:
    num_points = len(_keep_drawn(metric.train)[0])
    return num_points >= _MIN_SMOOTHED_POINTS and not metric.name.startswith("learning_rate")


def _keep_drawn(points: Points) -> Points:
    is_drawn = np.abs(points[1]) <= LARGEST_DRAWN
    return points[0][is_drawn], points[1][is_drawn]


def _describe_last(train: np.ndarray, test: np.ndarray) -> str:
    parts = [
        f"{what} {_format_value(values[-1])}"
        for what, values in (("training", train), ("test", test))
        if len(values)
    ]
    return f" – last: {', '.join(parts) if len(test) else _format_value(train[-1])}"


def _thin(points: Points) -> Points:
    # The last point stays: it is what the run ended with.
    count = len(points[0])
    keep = np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(int)
    return points[0][keep], points[1][keep]


def draw_calibration(parent: Element, bins: Sequence[tuple[int, float, float]]) -> None:
    """Draw equal ranges of confidence: images, mean confidence and accuracy of each."""
    figure = add(parent, "figure")
    axes = Axes(figure, "accuracy by confidence", (0.0, 1.0), (0.0, 1.0))
    axes.draw_grid("confidence (height: accuracy)")
    width = 1 / len(bins)
    for number, (count, sure, right) in enumerate(bins):
        if not count:
            continue
        x, y = axes.place(number * width, right)
        far = axes.place((number + 1) * width, 0.0)
        size = {"width": round(far[0] - x - 2, 1), "height": f"{far[1] - y:g}"}
        box = add(axes.svg, "rect", x=x + 1, y=y, **size, class_="bin")
        add(box, "title", f"{count:,} images: confidence {sure:.1%}, accuracy {right:.1%}")
    (x1, y1), (x2, y2) = axes.place(0, 0), axes.place(1, 1)
    add(axes.svg, "line", x1=x1, y1=y1, x2=x2, y2=y2, class_="ideal")


def _widen(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, limits)
    if high > low:
        return low, high
    # A constant still needs a height to lie in.
    margin = abs(low) / 2 or 0.5
    return low - margin, high + margin


def _format_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Return round values with their texts, four digits or as many as all of them need.

    >>> _format_ticks([6.48934, 6.48936]), _format_ticks([0.0, 20000.0])
    ([(6.48934, '6.48934'), (6.48936, '6.48936')], [(0.0, '0'), (20000.0, '20k')])
    """
    digits = 4
    while digits < 10 and any(float(f"{value:.{digits}g}") != value for value in values):
        digits += 1
    return [(value, _format_number(value, digits)) for value in values]


def _format_number(value: float, digits: int) -> str:
    thousands = 10_000 <= abs(value) < 1e9
    return f"{value / 1000:.{digits + 2}g}k" if thousands else f"{value:.{digits}g}"


def _format_value(value: float) -> str:
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"

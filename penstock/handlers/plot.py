"""`Plot`: a picture of the curves that grows as training goes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

import jax

from penstock._errors import check_installed
from penstock.events import BeginTraining, EndTraining, Event, HandlerState, Metrics
from penstock.handlers import _notebook
from penstock.handlers._metric_names import as_names, name_scalars
from penstock.handlers._readings import Readings
from penstock.handlers._test_results import Test, TestResults
from penstock.handlers.figures import Curve, Line, Panel, check_path, draw, encode

_LOGGER = logging.getLogger("penstock")

_INTERVAL_SECS = 5.0
_PAUSE_SECS = 600.0  # after an error in writing
_MAX_SHARE = 0.02  # of the time goes into drawing: a picture of many panels takes half a second


class Plot:
    """Draw the curves of a run, again every few seconds and at the end: in a notebook or a file.

    Each metric has a panel with a `train` curve, smoothed over the faint readings themselves, and a
    `test` curve where there is a test, as Fluid's book draws them with its `Ploter`. In a notebook,
    and without a `path`, the picture is shown below the cell that trains and replaced there.
    Elsewhere it is a file, replaced in one piece, so that a viewer may reload it at any time.

    Metrics are read at the interval only, and one launch late: the device always has the next one
    to go on with. A curve keeps 2000 points at most, evenly spread over the run. They are part of
    checkpoints: a run that resumes goes on with its curves.

    Arguments:
      path: the file; its suffix decides the format: `.png`, `.svg` or `.pdf`. Without it, the
        notebook's cell, and `curves.png` where there is no notebook.
      every_steps: how many steps lie between two points.
      names: names for the values of a program function that returns a tuple, a list or a single
        value; those beyond are called `metric_1` by their position. A dict brings its own names.
      test: called at the end of each epoch, returns metrics; or an `Evaluate` of the same run. They
        are drawn beside those of training.
      is_log: draw the metrics on a logarithmic scale.

    Raises:
      ModuleNotFoundError: matplotlib is not installed; the extra `plot` brings it.
      OSError: at the end of training, when the picture cannot be written; before, it is warned of.

    >>> import pathlib, tempfile
    >>> from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining
    >>> path = pathlib.Path(tempfile.mkdtemp(), "curves.svg")
    >>> plot = Plot(path, every_steps=1)
    >>> plot(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    >>> for step in range(3):
    ...     plot(BeginStep(epoch=0, step=step, global_step=step))
    ...     plot(EndStep(epoch=0, step=step, global_step=step, read=lambda: 1 / (1 + step)))
    >>> plot(EndTraining("completed"))
    >>> "train loss" in path.read_text()
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every_steps: int = 10,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
        is_log: bool = False,
    ) -> None:
        check_installed("matplotlib", "plot", "Plot")
        self._path = check_path("Plot", "curves.png" if path is None else path)
        self._show_in_cell = _notebook.find_display() if path is None else None
        self._output: _notebook.Output | None = None
        self._readings = Readings(every_steps)
        self._names = as_names(names)
        self._tests = TestResults(test)
        self._is_log = is_log
        self._curves: dict[str, dict[str, Curve]] = {"train": {}, "test": {}}
        self._next_draw = 0.0

    def __call__(self, event: Event) -> None:
        """Add the points that are ready at an event; draw every few seconds."""
        if isinstance(event, BeginTraining):
            # Points beyond it are of steps that are made again.
            for curve in (each for part in self._curves.values() for each in part.values()):
                curve.cut(event.global_step)
            self._tests.begin(event.global_step)
            if self._show_in_cell is not None:
                self._output = _notebook.Output(self._show_in_cell)
            self._next_draw = time.monotonic() + _INTERVAL_SECS
        reading = self._readings(event)
        if reading is not None:
            self._add("train", reading.global_step + 1, reading.metrics)
        results = self._tests(event)
        for num_steps, metrics in results:
            self._add("test", num_steps, metrics)
        if isinstance(event, EndTraining):
            self._end(event)
        # Only where there is something new to draw.
        elif (reading or results) and time.monotonic() >= self._next_draw:
            self._try_to_draw()

    def _end(self, event: EndTraining) -> None:
        if event.error is None:
            self._draw()
        else:
            self._try_to_draw()  # the error that ended training is the one to see

    def _add(self, part: str, num_steps: int, metrics: Metrics) -> None:
        for name, value in name_scalars(metrics, self._names).items():
            self._curves[part].setdefault(name, Curve()).add(num_steps, value)

    def _try_to_draw(self) -> None:
        try:
            self._draw()
        except OSError as error:  # a picture must not end a training
            # A full disk would otherwise be warned of every few seconds.
            self._next_draw = time.monotonic() + _PAUSE_SECS
            _LOGGER.warning("Plot could not write %s (%s); training goes on", self._path, error)

    def _draw(self) -> None:
        panels = [self._panel(name) for name in self._curves["train"] | self._curves["test"]]
        start = time.monotonic()
        if panels and not jax.process_index():  # one process draws
            if self._output is None:
                draw(self._path, panels)
            else:
                self._output.show(
                    f"curves of {', '.join(each.title for each in panels)}", encode(panels)
                )
        now = time.monotonic()
        # The slower the picture, the rarer.
        self._next_draw = now + max(_INTERVAL_SECS, (now - start) / _MAX_SHARE)

    def _panel(self, name: str) -> Panel:
        lines = [
            Line(
                label=f"{part} {name}",
                x=curves[name].x,
                y=curves[name].y,
                color=number,
                has_markers=part == "test",
            )
            for number, (part, curves) in enumerate(self._curves.items())
            if name in curves
        ]
        return Panel(title=name, lines=lines, is_y_log=self._is_log)

    def get_state(self) -> HandlerState:
        """Return the curves, for a checkpoint; the reading that is due next is taken now."""
        # What is held back for a later launch is a part of the checkpoint too.
        reading = self._readings.take()
        if reading is not None:
            self._add("train", reading.global_step + 1, reading.metrics)
        return {
            part: {name: curve.get_state() for name, curve in curves.items()}
            for part, curves in self._curves.items()
        }

    def set_state(self, state: HandlerState) -> None:
        """Go on with the curves of a checkpoint."""
        for part, curves in self._curves.items():
            curves.clear()
            for name, points in state[part].items():
                curves[name] = Curve()
                curves[name].set_state(points)

"""`Plot`: a picture of the curves, updated during training."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import jax

from penstock._errors import check_installed
from penstock.events import BeginTraining, EndTraining, Event, HandlerState, Metrics
from penstock.handlers._arguments import as_names, name_scalars
from penstock.handlers._display import CellOutput, find_display
from penstock.handlers._readings import Reading, Readings
from penstock.handlers.evaluate import Test, TestResults
from penstock.handlers.figures import CurveSet, Line, Panel, RedrawClock, check_path, draw, encode

_LOGGER = logging.getLogger("penstock")


class Plot:
    """Draw the curves of a run every few seconds and at the end, in a notebook or to a file.

    Each metric has a panel with a `train` curve (smoothed, over the faint values) and, if there is
    a test, a `test` curve. In a notebook and without a `path`, the picture appears below the
    training cell and is updated in place. Elsewhere it is a file that is replaced as a whole, so a
    viewer can reload it at any time. A curve keeps at most 2000 points, evenly spread over the run.
    Curves are saved in checkpoints, and a resumed run continues them.

    Arguments:
      path: the file; its suffix sets the format: `.png`, `.svg` or `.pdf`. By default the picture
        is shown in the notebook, or written to `curves.png` if there is none.
      every_steps: the interval in steps between two points; 0 or less draws tests only.
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function of metrics, called after each epoch.
      is_log: draw the metrics on a logarithmic scale.

    Raises:
      ModuleNotFoundError: matplotlib is not installed; the extra `plot` installs it.
      OSError: at the end of training, if the picture cannot be written. During training that is
        only logged as a warning.

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
        self._show_in_cell = find_display() if path is None else None
        self._output: CellOutput | None = None
        self._every_steps, self._readings = every_steps, Readings(every_steps)
        self._names, self._tests = as_names(names), TestResults("Plot", test)
        self._is_log = is_log
        self._curves, self._clock = CurveSet(), RedrawClock()

    def __call__(self, event: Event) -> None:
        """Add the points that are ready, and draw every few seconds."""
        if isinstance(event, BeginTraining):
            # Points beyond it are of steps that are made again.
            self._curves.cut(event.global_step)
            # A test that was broken off at this step is made again.
            self._tests.begin(event.global_step - 1, event.global_step)
            if self._show_in_cell is not None:
                self._output = CellOutput(self._show_in_cell)
            self._clock.begin()
        is_grown = self._add_all(self._readings(event), self._tests(event))
        if isinstance(event, EndTraining) and event.error is None:
            self._draw(is_last=True)
        # The error that ended training is the one to see; else where there is something to draw.
        elif isinstance(event, EndTraining) or (is_grown and self._clock.is_due()):
            self._clock.try_to(self._draw, "Plot", self._path)

    def _add_all(self, readings: Sequence[Reading], results: Sequence[tuple[int, Metrics]]) -> bool:
        """Add steps and tests to the curves; return whether there were any."""
        for reading in readings:
            self._add("train", reading.global_step + 1, reading.metrics)
        for num_steps, metrics in results:
            self._add("test", num_steps, metrics)
        return bool(readings or results)

    def _add(self, part: str, num_steps: int, metrics: Metrics) -> None:
        for name, value in name_scalars(metrics, self._names).items():
            self._curves.add(part, name, num_steps, value)

    def _draw(self, *, is_last: bool = False) -> None:
        panels = [self._panel(name) for name in self._curves["train"] | self._curves["test"]]
        if not panels and is_last:
            _LOGGER.warning(
                "Plot drew nothing: no step was read, at every_steps=%d. Pass a smaller "
                "every_steps, or train for longer.",
                self._every_steps,
            )
        if panels and not jax.process_index():  # one process draws
            if self._output is None:
                draw(self._path, panels)
            else:
                titles = ", ".join(panel.title for panel in panels)
                self._output.show(f"curves of {titles}", encode(panels))

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
        """Return the curves for a checkpoint, with what is due to be read."""
        # What is held back for a later launch or event is a part of the checkpoint too.
        self._add_all(self._readings.take(), self._tests())
        return self._curves.get_state()

    def set_state(self, state: HandlerState) -> None:
        """Restore the curves of a checkpoint."""
        self._curves.set_state(state)

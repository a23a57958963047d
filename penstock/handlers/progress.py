"""`Progress`: a line that shows the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import jax

from penstock._errors import check_count
from penstock.events import (
    BeginEpoch,
    BeginStep,
    BeginTraining,
    EndEpoch,
    EndStep,
    EndTraining,
    Event,
    Metrics,
)
from penstock.handlers._arguments import as_names, check_file, check_test, name_scalars
from penstock.handlers._display import Display, Lines, Pace, choose_output, make_display
from penstock.handlers._readings import name_rates


class Progress:
    """Show progress: one live line on a terminal or in a notebook, plain lines elsewhere.

    The live line shows epoch and step, metrics, learning rate (if the optimizer's state holds it),
    examples per second, time left, the share of the last epoch spent waiting for the reader (if at
    least 1 %), and the memory in use on the first device (if the backend reports it). If the line
    is too long, memory and waiting are dropped first, then the learning rate, then metrics from the
    last one on; speed and time left stay. Each epoch leaves a line with the means of its metrics.
    If the output is neither a terminal nor a notebook, that line is printed, and one more every
    five seconds.

    Metrics are read at most four times a second, one launch late, so that the device never waits.

    Arguments:
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function that returns metrics. It is called at the
        end of each epoch, and its metrics are shown beside the epoch's.
      stop_at: the step at which a `StopAt` in the same list ends training. Epochs, steps and time
        left then count to it.
      file: an open text file; standard output by default.

    >>> from penstock.events import BeginEpoch, BeginTraining, EndEpoch, EndTraining
    >>> progress = Progress(("loss", "accuracy"), test=lambda: (0.25, 0.5))
    >>> for event in [
    ...     BeginTraining(epoch=0, num_epochs=1, global_step=0),
    ...     BeginEpoch(epoch=0, global_step=0),
    ...     EndEpoch(epoch=0, global_step=8, read=lambda: (0.125, 0.75)),
    ...     EndTraining("completed"),
    ... ]:
    ...     progress(event)
    epoch 1/1  loss 0.1250 (test 0.2500)  accuracy 0.7500 (test 0.5000)
    """

    def __init__(
        self,
        names: Sequence[str] = ("loss",),
        *,
        test: Callable[[], Metrics] | None = None,
        stop_at: int | None = None,
        file: TextIO | None = None,
    ) -> None:
        check_test("Progress", test)
        check_file("Progress", file)
        if stop_at is not None:
            check_count("stop_at", stop_at, 0)
        self._names = as_names(names)
        self._test = test
        self._stop_at = stop_at
        self._file = file
        self._display: Display = Lines()  # to nowhere
        self._pace = Pace()
        self._values: dict[str, float] = {}
        self._held: EndStep | None = None
        self._is_held_ready = False
        self._next_refresh = 0.0

    def __call__(self, event: Event) -> None:
        """Update the line, at most a few times a second."""
        # The end of an epoch counts when its metrics are there: reading them waits for its steps.
        if not isinstance(event, EndEpoch):
            self._pace(event)
        match event:
            case EndStep():
                self._end_step(event)
            case BeginStep():
                # Once the next launch is on its way, reading the one before holds nothing up.
                self._is_held_ready = self._held is not None
            case BeginTraining():
                self._display.close()
                self._display = make_display(choose_output(self._file))
                device = _get_device(event)
                self._pace = Pace(event.epoch, event.num_epochs, device, self._stop_at)
                self._values = {}
                self._next_refresh = time.monotonic() + self._display.interval_secs
            case BeginEpoch():
                self._held = None
                self._display.wait(self._pace, _format_metrics(self._values) or ["  compiling"])
            case EndEpoch():
                self._end_epoch(event)
            case EndTraining():
                self._held = None
                self._display.close()
                self._display = Lines()

    def _end_step(self, event: EndStep) -> None:
        if self._held is not None:
            # Read before the next launch, it would hold up the device.
            if self._is_held_ready:
                self._values = name_scalars(self._held.metrics, self._names)
                rates = [
                    f"  {name.replace('learning_rate', 'lr')} {rate:.3g}"
                    for name, rate in name_rates(self._held.learning_rate).items()
                ]
                self._held = None
                self._display.update(self._pace, _format_metrics(self._values) + rates)
        elif (now := time.monotonic()) >= self._next_refresh:
            self._next_refresh = now + self._display.interval_secs
            self._held, self._is_held_ready = event, False

    def _end_epoch(self, event: EndEpoch) -> None:
        self._held = None
        self._values = name_scalars(event.metrics, self._names)
        self._pace(event)
        results: dict[str, float] = {}
        if self._test is not None:
            # A test may take minutes, in which no step would show a sign of life.
            self._display.wait(self._pace, ["  testing"])
            results = name_scalars(self._test(), self._names)
        self._display.end_epoch(self._pace, _format_metrics(self._values, results))


def _get_device(event: BeginTraining) -> Any:
    if event.trainer is None:
        return jax.local_devices()[0]
    return event.trainer.builder.mesh.local_devices[0]


def _format_metrics(
    values: Mapping[str, float], results: Mapping[str, float] | None = None
) -> list[str]:
    """Return metrics as texts, each with two spaces before it, with the test's in brackets."""
    results = results or {}
    parts = [
        f"  {name} {_format_number(value)}"
        + (f" (test {_format_number(results[name])})" if name in results else "")
        for name, value in values.items()
    ]
    only = [name for name in results if name not in values]
    return parts + [f"  test {name} {_format_number(results[name])}" for name in only]


def _format_number(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.3e}"

"""`TensorBoard`: curves, histograms, images and hyperparameters for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock._errors import check_installed
from penstock._files import expand_path
from penstock._parameter_updates import ParameterUpdate
from penstock.events import BeginTraining, EndEpoch, EndTraining, Event, Training
from penstock.handlers import _event_file
from penstock.handlers._arguments import (
    check_hyperparameters,
    check_interval,
    list_hyperparameters,
    make_folder,
)
from penstock.handlers._event_file import EventFile
from penstock.handlers._readings import Curves
from penstock.handlers.evaluate import Test

_SESSION = "session"
"""The file that says what a run was begun with."""


class TensorBoard:
    """Write event files for `tensorboard --logdir DIRECTORY`, without TensorFlow.

    The folder has two runs, `train` and `test`, so that their curves share a chart:

    - `train/loss` and the other metrics, at the interval; `epoch/loss`, the mean over an epoch, in
      one chart with the test.
    - `train/learning_rate`, if the optimizer's state holds it.
    - `speed/examples_per_sec`, without compilation and the time between epochs, and
      `speed/data_wait`, the fraction of an epoch spent waiting for the reader.
    - The parameter table, in the Text tab; optionally histograms of the parameters, and images.
    - With `Gradients` in the same list: `updates/gradient_norm` and the like; for each parameter
      `gradient_norm`, `relative_update` and histograms of its gradient and update.
    - `hyperparameters` and the trainer's configuration, in the HParams tab, to compare runs.

    The horizontal axis is the number of steps done. A run that is resumed in the same folder
    continues its curves; points of steps that are trained again are replaced. Metrics are read one
    launch late, so that the device never waits.

    Arguments:
      directory: the folder of the run. To compare runs, put their folders into one and start
        TensorBoard there.
      every_steps: the interval in steps between two points; 0 or less logs no steps.
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function of metrics, called after each epoch.
      histograms_every_epochs: the interval in epochs of parameter histograms. `None` by default:
        each copies all parameters to the host.
      images: a function, called at the end of each epoch, that returns images by name: each a uint8
        array `[H, W, C]`, or a list of them, with `C` of 1 (grey), 3 (RGB) or 4 (RGBA).
      hyperparameters: values by name, nested or not, such as `vars(arguments)` of argparse. A
        resumed run keeps those it began with.

    Raises:
      ModuleNotFoundError: tensorboard is not installed; the extra `tensorboard` installs it.
      OSError: at `BeginTraining`, if the folder cannot be written. A later write that fails is
        logged as a warning and its points are lost; at the end of training it is an error.

    >>> import os, tempfile
    >>> from penstock.events import BeginTraining, EndEpoch, EndTraining
    >>> directory = tempfile.mkdtemp()
    >>> board = TensorBoard(directory, names=("loss", "accuracy"), test=lambda: (0.25, 0.5))
    >>> board(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    >>> board(EndEpoch(epoch=0, global_step=8, read=lambda: (0.125, 0.75)))
    >>> board(EndTraining("completed"))
    >>> sorted(os.listdir(directory))
    ['test', 'train']
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_steps: int = 50,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
        histograms_every_epochs: int | None = None,
        images: Callable[[], Mapping[str, _event_file.Images]] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        check_installed("tensorboard", "tensorboard", "TensorBoard")
        check_interval("TensorBoard", "histograms_every_epochs", histograms_every_epochs)
        if images is not None and not callable(images):
            raise TypeError(
                f"TensorBoard got images of type {type(images).__name__}, expected a function "
                "without arguments that returns images by name. It is called after each epoch. "
                "Pass images=lambda: {'samples': samples}."
            )
        self._directory = expand_path(directory)
        self._curves = Curves("TensorBoard", every_steps, names, test)
        self._hyperparameters = check_hyperparameters("TensorBoard", hyperparameters)
        self._runs = ("train",) if test is None else ("train", "test")
        self._histograms_every_epochs = histograms_every_epochs
        self._images = images
        self._trainer: Training | None = None
        self._files: dict[str, EventFile] = {}  # none but on the first process

    def __call__(self, event: Event) -> None:
        """Write the points that are ready."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        for point in self._curves(event):
            # Means of an epoch and of its test share a chart.
            run, prefix = ("test", "epoch") if point.kind == "test" else ("train", point.kind)
            values = _event_file.scalars(prefix, point.values)
            self._add(run, point.num_steps, [*values, *_draw_updates(point.updates)])
        if isinstance(event, EndEpoch):
            self._write_epoch(event)
        if isinstance(event, EndTraining):
            self._end(event)

    def _begin(self, event: BeginTraining) -> None:
        self._close()
        self._trainer = event.trainer
        if jax.process_index():  # one process writes
            return
        make_folder("TensorBoard", "directory", self._directory)
        for run in self._runs:
            self._files[run] = EventFile(self._directory / run, event.global_step)
        if event.trainer is not None:
            # Text has no curve: it stands at step 0, where a resumed run replaces it.
            table = _event_file.text("parameter_table", _markdown(event.trainer.builder))
            self._add("train", 0, [table])
        values = list_hyperparameters(self._hyperparameters, event.trainer, ["configuration"])
        if values:
            # Above the runs: the tab then shows the curves of both beside one line of values.
            self._files[_SESSION] = EventFile(self._directory, event.global_step)
            self._add(_SESSION, 0, [_event_file.session_start(values)])

    def _add(self, run: str, num_steps: int, values: Sequence[Any]) -> None:
        if run in self._files:
            self._files[run].add(num_steps, values)

    def _write_epoch(self, event: EndEpoch) -> None:
        values = []
        if self._images is not None:
            pictures = self._images()
            values += [_event_file.images(f"images/{name}", pictures[name]) for name in pictures]
        every = self._histograms_every_epochs
        if every is not None and (event.epoch + 1) % every == 0 and self._trainer is not None:
            # TensorBoard sorts by the first part of a name: the curves come before many of these.
            values += [
                _event_file.histogram(f"parameters/{name}", value)
                for name, value in self._trainer.parameters.items()
            ]
        if values:
            self._add("train", event.global_step, values)

    def _end(self, event: EndTraining) -> None:
        # TensorBoard keeps the first end it reads: one that a resume may follow is not written.
        if event.reason in ("completed", "stopped"):
            self._add(_SESSION, 0, [_event_file.session_end()])
        failures = [file.failure for file in self._files.values() if file.failure is not None]
        self._close()
        if failures and event.error is None:
            raise OSError(_event_file.explain(self._directory, failures[0])) from failures[0]

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}


def _draw_updates(updates: Mapping[str, ParameterUpdate]) -> list[Any]:
    """Return the sizes and distributions of what a step did to each parameter."""
    values: list[Any] = []
    for name, update in updates.items():
        sizes = {"gradient_norm": update.gradient_norm, "relative_update": update.relative_update}
        values += [value for k in sizes for value in _event_file.scalars(k, {name: sizes[k]})]
        for kind, bins in (("gradient", update.gradient), ("update", update.update)):
            edges = np.linspace(bins.low, bins.high, len(bins.counts) + 1)
            values.append(_event_file.counted_histogram(f"{kind}/{name}", bins.counts, edges))
    return values


def _markdown(builder: Any) -> str:
    """Return the parameter table of a program builder."""
    lines = ["| name | shape | dtype | elements | |", "|:--|:--|:--|--:|:--|"]
    for row in builder.parameter_table():
        kind = "statistic" if row.collection != "params" else "" if row.is_trainable else "frozen"
        cells = (row.name, str(list(row.shape)), row.dtype, f"{row.size:,}", kind)
        lines.append(f"| {' | '.join(cells)} |")
    total = builder.summary().splitlines()[-1]
    return "\n".join([*lines, "", total])

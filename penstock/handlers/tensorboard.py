"""`TensorBoard`: curves, histograms, images and hyperparameters as TensorBoard shows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock._errors import check_installed
from penstock._parameter_updates import ParameterUpdate
from penstock._paths import expand_path
from penstock.events import BeginTraining, EndEpoch, EndTraining, Event, Training
from penstock.handlers import _event_file
from penstock.handlers._arguments import check_interval, check_test, make_folder
from penstock.handlers._curves import Curves
from penstock.handlers._event_file import EventFile, NoEventFile
from penstock.handlers._hyperparameters import check_hyperparameters, list_hyperparameters
from penstock.handlers._test_results import Test

_SESSION = "session"
"""The file that says what a run was begun with."""


class TensorBoard:
    """Write event files that `tensorboard --logdir DIRECTORY` shows; TensorFlow is not needed.

    There are two runs in the folder, `train` and `test`, so that their curves share a chart:

    - `train/loss` and the other metrics, at the interval; `epoch/loss`, their means over an epoch,
      and those of the test beside them.
    - `speed/examples_per_sec`, without compiling and what is between epochs, and
      `speed/data_wait`, the share of its time that an epoch waited for the reader.
    - The parameter table under Text; histograms of the parameters and images on request.
    - With `Gradients` beside it `updates/gradient_norm` and the like, `gradient_norm` and
      `relative_update` of each parameter, and histograms of its gradient and its update.
    - Under HParams `hyperparameters` and the trainer's configuration, to compare runs by.

    All are drawn by the number of steps done. A run that resumes in the same folder goes on with
    its curves; what was written of steps that are made again is taken back. At the interval metrics
    are read one launch late, so the device always has something to go on with.

    Arguments:
      directory: the folder; those of several runs in one folder are compared by its name.
      every_steps: how many steps lie between two points.
      names: names for the values of a program function that returns a single value, a tuple or a
        list; further values are called `metric_1`, `metric_2` by position. A dict has its own.
      test: called at the end of each epoch, returns metrics; or an `Evaluate` of the same run.
      histograms_every_epochs: epochs between two histograms of each parameter; none by default, as
        each copies the whole network to the host.
      images: called at the end of each epoch; returns images by name, each uint8 `[H, W, C]`, or a
        list of such, `C` being 1, 3 (RGB) or 4.
      hyperparameters: values by name, of any depth, such as `vars(arguments)` of argparse; those of
        a run stay what they were when it began.

    Raises:
      ModuleNotFoundError: tensorboard is not installed; the extra `tensorboard` brings it.
      OSError: at `BeginTraining`, when the folder cannot be written. A write that fails later is
        warned of and left out; at the end of training that is an error.

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
        check_test("TensorBoard", test)
        if images is not None and not callable(images):
            raise TypeError(
                f"TensorBoard got images of type {type(images).__name__}, expected a function "
                "without arguments that returns images by name. It is called after each epoch. "
                "Pass images=lambda: {'samples': samples}."
            )
        self._directory = expand_path(directory)
        self._curves = Curves(every_steps, names, test)
        self._hyperparameters = check_hyperparameters("TensorBoard", hyperparameters)
        self._runs = ("train",) if test is None else ("train", "test")
        self._histograms_every_epochs = histograms_every_epochs
        self._images = images
        self._trainer: Training | None = None
        self._files: dict[str, EventFile | NoEventFile] = {}

    def __call__(self, event: Event) -> None:
        """Write what is ready at an event."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        for point in self._curves(event):
            # Means of an epoch and of its test share a chart.
            run, prefix = ("test", "epoch") if point.kind == "test" else ("train", point.kind)
            values = _event_file.scalars(prefix, point.values)
            self._files[run].add(point.num_steps, [*values, *_draw_updates(point.updates)])
        if isinstance(event, EndEpoch):
            self._write_epoch(event)
        if isinstance(event, EndTraining):
            self._end(event)

    def _begin(self, event: BeginTraining) -> None:
        self._close()
        if not jax.process_index():
            make_folder("TensorBoard", "directory", self._directory)
        self._trainer = event.trainer
        for run in self._runs:
            self._open(run, run, event.global_step)
        if event.trainer is not None:
            # Text has no curve: it stands at step 0, where a resumed run replaces it.
            table = _event_file.text("parameter_table", _markdown(event.trainer.builder))
            self._files["train"].add(0, [table])
        if jax.process_index():
            return
        said = list_hyperparameters(self._hyperparameters, event.trainer, ["configuration"])
        if said:
            # Above the runs: the tab then shows the curves of both beside one line of values.
            self._open(_SESSION, ".", event.global_step)
            self._files[_SESSION].add(0, [_event_file.session_start(said)])

    def _open(self, run: str, folder: str, num_steps: int) -> None:
        self._files[run] = (
            NoEventFile()  # one process writes
            if jax.process_index()
            else EventFile(self._directory / folder, num_steps)
        )

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
            self._files["train"].add(event.global_step, values)

    def _end(self, event: EndTraining) -> None:
        # TensorBoard keeps the first end it reads: one that a resume may follow is not written.
        if _SESSION in self._files and event.reason in ("completed", "stopped"):
            self._files[_SESSION].add(0, [_event_file.session_end()])
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
        for kind, each in (("gradient", update.gradient), ("update", update.update)):
            edges = np.linspace(each.low, each.high, len(each.counts) + 1)
            values.append(_event_file.counted_histogram(f"{kind}/{name}", each.counts, edges))
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

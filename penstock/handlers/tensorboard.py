"""`TensorBoard`: curves, histograms, images and the parameter table as TensorBoard shows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from penstock._errors import check_installed
from penstock._paths import expand_path
from penstock.events import BeginTraining, EndEpoch, EndTraining, Event, Training
from penstock.handlers import _event_file
from penstock.handlers._event_file import EventFile, NoEventFile
from penstock.handlers._metric_names import as_names, name_scalars
from penstock.handlers._readings import Reading, Readings, Speed
from penstock.handlers._test_results import Test, TestResults


class TensorBoard:
    """Write event files that `tensorboard --logdir DIRECTORY` shows; TensorFlow is not needed.

    There are two runs in the folder, `train` and `test`, so that their curves share a chart:

    - `train/loss` and the other metrics, at the interval; `epoch/loss`, their means over an epoch,
      and those of the test beside them.
    - `speed/examples_per_sec`, without compiling and what is between epochs, and
      `speed/data_wait`, the share of its time that an epoch waited for the reader.
    - The parameter table under Text; histograms of the parameters and images on request.

    All are drawn by the number of steps done. A run that resumes in the same folder goes on with
    its curves; what was written of steps that are made again is taken back. At the interval metrics
    are read one launch late, so the device always has something to go on with.

    Arguments:
      directory: the folder; those of several runs in one folder are compared by its name.
      every_steps: how many steps lie between two points.
      names: names for the values of a program function that returns a tuple, a list or a single
        value; those beyond are called `metric_1` by their position. A dict brings its own names.
      test: called at the end of each epoch, returns metrics; or an `Evaluate` of the same run.
      histograms_every_epochs: epochs between two histograms of each parameter; none by default, as
        each copies the whole network to the host.
      images: called at the end of each epoch; returns images by name, each uint8 `[H, W, C]`, or a
        list of such, `C` being 1, 3 (RGB) or 4.

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
    ) -> None:
        check_installed("tensorboard", "tensorboard", "TensorBoard")
        if histograms_every_epochs is not None and histograms_every_epochs < 1:
            raise ValueError(
                f"histograms_every_epochs got {histograms_every_epochs!r}, expected a positive "
                "integer, or None. It is how many epochs lie between two. None writes none."
            )
        self._directory = expand_path(directory)
        self._readings = Readings(every_steps)
        self._names = as_names(names)
        self._runs = ("train",) if test is None else ("train", "test")
        self._tests = TestResults(test)
        self._histograms_every_epochs = histograms_every_epochs
        self._images = images
        self._speed = Speed()
        self._trainer: Training | None = None
        self._files: dict[str, EventFile | NoEventFile] = {}

    def __call__(self, event: Event) -> None:
        """Write what is ready at an event."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        self._speed(event)
        reading = self._readings(event)
        if reading is not None:
            self._write_step(reading)
        if isinstance(event, EndEpoch):
            self._write_epoch(event)
        for num_steps, metrics in self._tests(event):
            values = _event_file.scalars("epoch", name_scalars(metrics, self._names))
            self._files["test"].add(num_steps, values)
        if isinstance(event, EndTraining):
            failures = [file.failure for file in self._files.values() if file.failure is not None]
            self._close()
            if failures and event.error is None:
                raise OSError(_event_file.explain(self._directory, failures[0])) from failures[0]

    def _begin(self, event: BeginTraining) -> None:
        self._close()
        self._tests.begin(event.global_step)
        self._trainer = event.trainer
        for run in self._runs:
            self._files[run] = (
                NoEventFile()  # one process writes
                if jax.process_index()
                else EventFile(self._directory / run, event.global_step)
            )
        if event.trainer is not None:
            # Text has no curve: it stands at step 0, where a resumed run replaces it.
            table = _event_file.text("parameter_table", _markdown(event.trainer.builder))
            self._files["train"].add(0, [table])

    def _write_step(self, reading: Reading) -> None:
        named_values = {**reading.rates, **name_scalars(reading.metrics, self._names)}
        values = _event_file.scalars("train", named_values)
        lap = self._speed.end_lap()
        if lap is not None:
            speed = {"examples_per_sec": lap.num_examples / lap.secs}
            values += _event_file.scalars("speed", speed)
        self._files["train"].add(reading.global_step + 1, values)

    def _write_epoch(self, event: EndEpoch) -> None:
        values = _event_file.scalars("epoch", name_scalars(event.metrics, self._names))
        if event.data_wait is not None:
            values += _event_file.scalars("speed", {"data_wait": event.data_wait})
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
        self._files["train"].add(event.global_step, values)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}


def _markdown(builder: Any) -> str:
    """Return the parameter table of a program builder."""
    lines = ["| name | shape | dtype | elements | |", "|:--|:--|:--|--:|:--|"]
    for row in builder.parameter_table():
        kind = "statistic" if row.collection != "params" else "" if row.is_trainable else "frozen"
        cells = (row.name, str(list(row.shape)), row.dtype, f"{row.size:,}", kind)
        lines.append(f"| {' | '.join(cells)} |")
    total = builder.summary().splitlines()[-1]
    return "\n".join([*lines, "", total])

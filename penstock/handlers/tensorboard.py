"""`TensorBoard`: curves, histograms, images and hyperparameters for TensorBoard.

Event files are written without TensorFlow: the `tensorboard` package brings their messages. Its own
writer is not used: it imports TensorFlow where that is installed, which takes seconds and the GPU's
memory, and computes checksums in Python.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from penstock._errors import check_installed, check_int, check_type
from penstock._files import append_whole, expand_path
from penstock._image_resizing import encode_png
from penstock._parameter_updates import ParameterUpdate
from penstock.events import BeginTraining, EndEpoch, EndTraining, Event, Training
from penstock.handlers import _arguments
from penstock.handlers._readings import Curves
from penstock.handlers.evaluate import Test

if TYPE_CHECKING:
    from google.protobuf.message import Message

_LOGGER = logging.getLogger("penstock")

_NUM_BUCKETS = 30

Images = np.ndarray | Sequence[np.ndarray]
"""One image `[H, W, C]`, several `[N, H, W, C]`, or a list of images."""

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
    - The parameter table and what was compiled, in the Text tab; optionally histograms of the
      parameters, and images.
    - With `Gradients` in the same list: `updates/gradient_norm` and the like; for each parameter
      `gradient_norm`, `relative_update` and histograms of its gradient and update.
    - `hyperparameters` and the trainer's configuration, in the HParams tab, to compare runs.

    The horizontal axis is the number of steps done. A run that is resumed in the same folder
    continues its curves; points of steps that are trained again are replaced.

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
        images: Callable[[], Mapping[str, Images]] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        check_installed("tensorboard", "tensorboard", "TensorBoard")
        if histograms_every_epochs is not None:
            check_int("histograms_every_epochs", histograms_every_epochs, 1)
        expected = "a function that returns images by name. It is called after each epoch."
        remedy = "Pass images=lambda: {'samples': samples}."
        check_type("TensorBoard got images=", images, Callable | None, f"{expected} {remedy}")
        self._directory = expand_path(directory)
        self._curves = Curves("TensorBoard", every_steps, names, test)
        self._hyperparameters = _arguments.check_hyperparameters("TensorBoard", hyperparameters)
        self._runs = ("train",) if test is None else ("train", "test")
        self._histograms_every_epochs = histograms_every_epochs
        self._images = images
        self._trainer: Training | None = None
        self._files: dict[str, _EventFile] = {}  # none but on the first process

    def __call__(self, event: Event) -> None:
        """Write the points that are ready."""
        if isinstance(event, BeginTraining):
            self._begin(event)
        for point in self._curves(event):
            # Means of an epoch and of its test share a chart.
            run, prefix = ("test", "epoch") if point.kind == "test" else ("train", point.kind)
            values = _scalars(prefix, point.values)
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
        _arguments.make_folder("TensorBoard", self._directory)
        for run in self._runs:
            self._files[run] = _EventFile(self._directory / run, event.global_step)
        if event.trainer is not None:
            # Text has no curve: it stands at step 0, where a resumed run replaces it.
            table = _text("parameter_table", _list_parameters(event.trainer.builder))
            self._add("train", 0, [table])
        values = _arguments.list_hyperparameters(
            self._hyperparameters, event.trainer, ["configuration"]
        )
        if values:
            # Above the runs: the tab then shows the curves of both beside one line of values.
            self._files[_SESSION] = _EventFile(self._directory, event.global_step)
            self._add(_SESSION, 0, [_session_start(values)])

    def _add(self, run: str, num_steps: int, values: Sequence[Any]) -> None:
        if run in self._files:
            self._files[run].add(num_steps, values)

    def _write_epoch(self, event: EndEpoch) -> None:
        values = []
        if self._images is not None:
            pictures = self._images()
            values += [_images(f"images/{name}", pictures[name]) for name in pictures]
        every = self._histograms_every_epochs
        if every is not None and (event.epoch + 1) % every == 0 and self._trainer is not None:
            # TensorBoard sorts by the first part of a name: the curves come before many of these.
            values += [
                _histogram(f"parameters/{name}", value)
                for name, value in self._trainer.parameters.items()
            ]
        if values:
            self._add("train", event.global_step, values)

    def _end(self, event: EndTraining) -> None:
        # TensorBoard keeps the first end it reads: one that a resume may follow is not written.
        if event.reason in ("completed", "stopped"):
            self._add(_SESSION, 0, [_session_end()])
        if self._trainer is not None:
            self._add("train", 0, [_text("compilations", _list_compilations(self._trainer))])
        failures = [file.failure for file in self._files.values() if file.failure is not None]
        self._close()
        if failures and event.error is None:
            raise failures[0]

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}


def _draw_updates(updates: Mapping[str, ParameterUpdate]) -> list[Any]:
    """Return the sizes and distributions of what a step did to each parameter."""
    values: list[Any] = []
    for name, update in updates.items():
        sizes = {"gradient_norm": update.gradient_norm, "relative_update": update.relative_update}
        values += [value for k in sizes for value in _scalars(k, {name: sizes[k]})]
        for kind, bins in (("gradient", update.gradient), ("update", update.update)):
            edges = np.linspace(bins.low, bins.high, len(bins.counts) + 1)
            values.append(_counted_histogram(f"{kind}/{name}", bins.counts, edges))
    return values


def _list_parameters(builder: Any) -> str:
    rows = [row.cells for row in builder.parameter_table()]
    table = _markdown("| name | shape | dtype | elements | |", "|:--|:--|:--|--:|:--|", rows)
    return f"{table}\n\n{builder.summary().splitlines()[-1]}"


def _list_compilations(trainer: Any) -> str:
    rows = [
        (c.program, f"{c.num_examples:,}", "" if c.secs is None else f"{c.secs:.1f}", c.why)
        for c in trainer.builder.programs.compilations
    ]
    return _markdown("| program | examples | seconds | why again |", "|:--|--:|--:|:--|", rows)


def _markdown(head: str, rule: str, rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([head, rule, *(f"| {' | '.join(row)} |" for row in rows)])


class _EventFile:
    """A file of one run, which continues the files of the same folder.

    What older ones hold of steps after `num_steps` is taken back, as those are made again.
    `failure` is the first error in writing; what could not be written is left out.
    """

    def __init__(self, folder: Path, num_steps: int) -> None:
        self.failure: OSError | None = None
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names: the time comes first, with
        # so many digits that a second file of the same process is later.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        # Unbuffered: a killed process has lost nothing.
        self._file = FileIO(folder / name, "wb")
        self._write(file_version="brain.Event:2")
        start = _proto("event").SessionLog
        self._write(step=num_steps + 1, session_log=start(status=start.START))

    def add(self, num_steps: int, values: Sequence[Message]) -> None:
        try:
            self._write(step=num_steps, summary=_proto("summary").Summary(value=values))
        except OSError as error:
            if self.failure is None:
                self.failure = _arguments.explain_write("TensorBoard", self._file.name, error)
                _LOGGER.warning("%s Training goes on.", self.failure)

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: object) -> None:
        """Append an event as a record: length, its checksum, the message, its checksum."""
        data = _proto("event").Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        append_whole(self._file, length + _checksum(length) + data + _checksum(data))


def _scalars(prefix: str, values: Mapping[str, float]) -> list[Message]:
    """Return scalars by name as `prefix/name`."""
    value = _proto("summary").Summary.Value
    return [value(tag=f"{prefix}/{name}", simple_value=v) for name, v in values.items()]


def _text(tag: str, markdown: str) -> Message:
    return _value("text", tag, [markdown.encode()])


def _histogram(tag: str, values: np.ndarray) -> Message:
    """Return the distribution of an array's finite values in thirty buckets of equal width."""
    flat = np.asarray(values, np.float64).ravel()
    # numpy refuses to place what is not finite.
    return _counted_histogram(tag, *np.histogram(flat[np.isfinite(flat)], bins=_NUM_BUCKETS))


def _counted_histogram(tag: str, counts: np.ndarray, edges: np.ndarray) -> Message:
    """Return a distribution of N buckets: how many values are in each, and N + 1 edges."""
    buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return _value("histogram", tag, buckets.astype(np.float64))


def _images(tag: str, pictures: Images) -> Message:
    """Return images `[H, W, C]` as PNG, with `C` of 1, 3 (RGB) or 4 (RGBA)."""
    many = pictures if isinstance(pictures, list | tuple) or np.ndim(pictures) == 4 else [pictures]
    encoded = []
    for picture in map(np.asarray, many):
        if picture.dtype != np.uint8:
            raise TypeError(
                f"the image {tag!r} got dtype {picture.dtype}, expected uint8. It is shown as it "
                "is. Scale it to 0..255 and convert it."
            )
        if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4):
            raise ValueError(
                f"the image {tag!r} got shape {list(picture.shape)}, expected [H, W, C] with C of "
                "1, 3 or 4. They are grey, RGB and RGBA. Add or drop axes."
            )
        encoded.append(encode_png(picture))
    height, width = np.shape(many[0])[:2] if len(many) else (0, 0)
    # The plugin's form: width and height in front of the pictures, all as strings.
    size = [str(width).encode(), str(height).encode()]
    return _value("image", tag, [*size, *encoded])


def _session_start(hyperparameters: Mapping[str, bool | int | float | str]) -> Message:
    """Return what a run was begun with; which columns the tab has is left to it."""
    info = _hparams().SessionStartInfo(start_time_secs=time.time())
    for name, value in hyperparameters.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
        else:
            info.hparams[name].number_value = value
    return _session("_hparams_/session_start_info", session_start_info=info)


def _session_end() -> Message:
    success: Any = importlib.import_module("tensorboard.plugins.hparams.api_pb2").STATUS_SUCCESS
    info = _hparams().SessionEndInfo(status=success, end_time_secs=time.time())
    return _session("_hparams_/session_end_info", session_end_info=info)


def _session(tag: str, **info: Message) -> Message:
    # Not by functions of TensorBoard's own: they import TensorFlow, or its stand-in.
    summary, shape = _proto("summary"), _proto("tensor_shape").TensorShapeProto
    content = _hparams().HParamsPluginData(version=0, **info).SerializeToString()
    data = summary.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    metadata = summary.SummaryMetadata(plugin_data=data)
    # The tab reads the metadata alone; a value has to have something all the same.
    empty = _proto("tensor").TensorProto(
        dtype=_proto("types").DT_FLOAT, tensor_shape=shape(dim=[shape.Dim(size=0)])
    )
    return summary.Summary.Value(tag=tag, metadata=metadata, tensor=empty)


def _hparams() -> Any:
    return importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")


def _value(plugin: str, tag: str, values: np.ndarray | Sequence[bytes]) -> Message:
    metadata: Any = importlib.import_module(f"tensorboard.plugins.{plugin}.metadata")
    summary = metadata.create_summary_metadata(display_name=None, description=None)
    tensor = importlib.import_module("tensorboard.util.tensor_util").make_tensor_proto(values)
    return _proto("summary").Summary.Value(tag=tag, metadata=summary, tensor=tensor)


def _proto(name: str) -> ModuleType:
    """Return a module of TensorBoard's messages, imported when a file is written."""
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")


def _checksum(data: bytes) -> bytes:
    from penstock._checksums import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))

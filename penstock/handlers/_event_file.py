"""TensorBoard's event files and their messages, written without TensorFlow.

The `tensorboard` package brings the messages. Its own writer is not used: it imports TensorFlow
where that is installed, which takes seconds and the GPU's memory, and computes checksums in Python.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._files import append_whole

if TYPE_CHECKING:
    from google.protobuf.message import Message

_LOGGER = logging.getLogger("penstock")

_NUM_BUCKETS = 30

Images = np.ndarray | Sequence[np.ndarray]
"""One image `[H, W, C]`, several `[N, H, W, C]`, or a list of images."""


class EventFile:
    """A file of one run, which continues the files of the same folder.

    Arguments:
      folder: the run's folder, made where it is missing.
      num_steps: steps done before. What older files hold of later ones is taken back, as the steps
        are made again: TensorBoard shows one curve.

    Attributes:
      failure: the first error in writing. What could not be written is left out.
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
        # TensorBoard then drops what earlier files hold from that step on: steps that are made
        # again.
        self._write(step=num_steps + 1, session_log=start(status=start.START))

    def add(self, num_steps: int, values: Sequence[Message]) -> None:
        """Append values for the state after `num_steps` steps."""
        try:
            self._write(step=num_steps, summary=_proto("summary").Summary(value=values))
        except OSError as error:
            if self.failure is None:
                self.failure = error
                _LOGGER.warning("%s Training goes on.", explain(self._file.name, error))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: object) -> None:
        """Append an event as a record: length, its checksum, the message, its checksum."""
        data = _proto("event").Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        # A record of TFRecord: length and data, each with its checksum.
        append_whole(self._file, length + _checksum(length) + data + _checksum(data))


def explain(path: str | os.PathLike[str], error: OSError) -> str:
    """Return the text of an error in writing an event file."""
    return (
        f"TensorBoard got the file {str(path)!r}, expected one that can be written "
        f"({error.strerror or error}). Its curves have gaps. Make room or give permission there."
    )


def scalars(prefix: str, values: Mapping[str, float]) -> list[Message]:
    """Return scalars by name as `prefix/name`."""
    value = _proto("summary").Summary.Value
    return [value(tag=f"{prefix}/{name}", simple_value=v) for name, v in values.items()]


def text(tag: str, markdown: str) -> Message:
    return _value("text", tag, _strings([markdown.encode()]))


def histogram(tag: str, values: np.ndarray) -> Message:
    """Return the distribution of an array's finite values in thirty buckets of equal width."""
    flat = np.asarray(values, np.float64).ravel()
    # numpy refuses to place what is not finite.
    return counted_histogram(tag, *np.histogram(flat[np.isfinite(flat)], bins=_NUM_BUCKETS))


def counted_histogram(tag: str, counts: np.ndarray, edges: np.ndarray) -> Message:
    """Return a distribution of N buckets: how many values are in each, and N + 1 edges."""
    buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
    content = buckets.astype("<f8").tobytes()
    return _value("histogram", tag, _tensor("DT_DOUBLE", buckets.shape, tensor_content=content))


def images(tag: str, pictures: Images) -> Message:
    """Return one image `[H, W, C]` or several, as PNG; `C` is 1, 3 (RGB) or 4 (RGBA).

    Raises:
      TypeError: an image is not uint8.
      ValueError: an image has another shape.
    """
    import cv2

    # An array [H, W, C] is one image; a list, and an array [N, H, W, C], are several.
    many = pictures if isinstance(pictures, list | tuple) or np.ndim(pictures) == 4 else [pictures]
    orders = {1: slice(None), 3: [2, 1, 0], 4: [2, 1, 0, 3]}  # opencv has blue first
    encoded = []
    for picture in map(np.asarray, many):
        if picture.dtype != np.uint8:
            raise TypeError(
                f"the image {tag!r} got dtype {picture.dtype}, expected uint8. It is shown as it "
                "is. Scale it to 0..255 and convert it."
            )
        if picture.ndim != 3 or picture.shape[2] not in orders:
            raise ValueError(
                f"the image {tag!r} got shape {list(picture.shape)}, expected [H, W, C] with C of "
                "1, 3 or 4. They are grey, RGB and RGBA. Add or drop axes."
            )
        encoded.append(cv2.imencode(".png", picture[:, :, orders[picture.shape[2]]])[1].tobytes())
    height, width = np.shape(many[0])[:2] if len(many) else (0, 0)
    # The plugin's form: width and height in front of the pictures, all as strings.
    size = [str(width).encode(), str(height).encode()]
    return _value("image", tag, _strings([*size, *encoded]))


def session_start(hyperparameters: Mapping[str, bool | int | float | str]) -> Message:
    """Return what a run was begun with, as the HParams tab shows it.

    Which columns the tab has is left to it: it takes those of all runs in its folder.
    """
    info = _hparams().SessionStartInfo(start_time_secs=time.time())
    for name, value in hyperparameters.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
        else:
            info.hparams[name].number_value = value
    return _session("_hparams_/session_start_info", session_start_info=info)


def session_end() -> Message:
    """Return the end of a run that did what it should, for the HParams tab."""
    success: Any = importlib.import_module("tensorboard.plugins.hparams.api_pb2").STATUS_SUCCESS
    info = _hparams().SessionEndInfo(status=success, end_time_secs=time.time())
    return _session("_hparams_/session_end_info", session_end_info=info)


def _session(tag: str, **info: Message) -> Message:
    # Not the plugin's own functions for it: they import TensorFlow, or its stand-in.
    summary = _proto("summary")
    content = _hparams().HParamsPluginData(version=0, **info).SerializeToString()
    data = summary.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    metadata = summary.SummaryMetadata(plugin_data=data)
    # The tab reads the metadata alone; a value has to have something all the same.
    return summary.Summary.Value(tag=tag, metadata=metadata, tensor=_tensor("DT_FLOAT", [0]))


def _hparams() -> Any:
    return importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")


def _value(plugin: str, tag: str, tensor: Message) -> Message:
    """Return a value that one of TensorBoard's plugins shows."""
    metadata: Any = importlib.import_module(f"tensorboard.plugins.{plugin}.metadata")
    summary = metadata.create_summary_metadata(display_name=None, description=None)
    return _proto("summary").Summary.Value(tag=tag, metadata=summary, tensor=tensor)


def _strings(values: Sequence[bytes]) -> Message:
    return _tensor("DT_STRING", [len(values)], string_val=values)


def _tensor(dtype: str, sizes: Sequence[int], **content: object) -> Message:
    shape = _proto("tensor_shape").TensorShapeProto
    return _proto("tensor").TensorProto(
        dtype=dtype,
        tensor_shape=shape(dim=[shape.Dim(size=size) for size in sizes]),
        **content,
    )


def _proto(name: str) -> ModuleType:
    """Return a module of TensorBoard's messages, imported when a file is written."""
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")


def _checksum(data: bytes) -> bytes:
    """Return the checksum of TensorFlow's record files."""
    from penstock._checksums import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))

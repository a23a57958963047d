"""MNIST's IDX files and CIFAR's binary batches, checked: sizes, shapes, labels."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.readers._archives.files import FileContent, Limits, archive_error, open_stream

_IDX = "a whole IDX file of bytes"
# EMNIST's digits, the largest set in MNIST's format and classes, have 280,000.
_MAX_IMAGES = 300_000
_SIZE = 28
_MAX_LABEL = 9
_CIFAR_PIXELS = 3 * 32 * 32
CIFAR10_LIMITS = Limits(file_bytes=10_000 * (1 + _CIFAR_PIXELS), total_bytes=400 << 20)
CIFAR100_LIMITS = Limits(file_bytes=50_000 * (2 + _CIFAR_PIXELS), total_bytes=400 << 20)


def read_mnist(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images `[N, 28, 28]` and labels `[N]`, uint8, of IDX files, plain or gzipped.

    Raises:
      FileNotFoundError: one is not there.
      ArchiveError: one is damaged or another file, or they do not belong together.
    """
    images = read_idx(images_path, (_SIZE, _SIZE))
    labels = read_idx(labels_path, ())
    if len(images) != len(labels):
        raise archive_error(
            labels_path,
            f"{len(labels)} labels",
            f"{len(images)}, one for each image in '{images_path.name}'",
            "The files do not belong together",
            remedy=f"Delete both in '{labels_path.parent}' and get them again",
        )
    if labels.max() > _MAX_LABEL:
        got = f"label {labels.max()} at {int(labels.argmax())}"
        raise archive_error(labels_path, got, "labels 0 to 9", "There are ten classes")
    return images, labels


def read_idx(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Return the array `[N, *shape]` of an IDX file of unsigned bytes, plain or gzipped.

    Never more is read than its header declares.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: it is damaged, or holds an array of another shape, or none.
    """
    num_axes = 1 + len(shape)
    header_size = 4 + 4 * num_axes
    max_bytes = header_size + _MAX_IMAGES * math.prod(shape)
    with open_stream(path, max_bytes + 1, _IDX) as stream:
        header = stream.read_up_to(header_size)
        if len(header) < header_size or header[:4] != bytes((0, 0, 8, num_axes)):
            got = f"the first bytes '{header.hex()}'"
            raise archive_error(path, got, f"{_IDX} with {num_axes} axes", "It is another file")
        found = struct.unpack(f">{num_axes}I", header[4:])
        if found[1:] != tuple(shape) or not 0 < found[0] <= _MAX_IMAGES:
            raise archive_error(
                path,
                f"shape {list(found)}",
                f"{[f'1 to {_MAX_IMAGES}', *shape]}".replace("'", ""),
                "The original has 60,000 or 10,000 images of 28 x 28",
            )
        values = np.empty(math.prod(found), np.uint8)
        size = stream.fill(values)
        # Also makes gzip check its sum, which stands at the end.
        is_longer = bool(stream.read_up_to(1))
    if size < values.size or is_longer:
        got = f"more than {size} bytes" if is_longer else f"{size} bytes"
        why = f"Its header says shape {list(found)}"
        raise archive_error(path, f"{got} behind its header", f"{_IDX}, {values.size} bytes", why)
    return values.reshape(found)


def read_cifar_records(file: FileContent, num_labels: int, num_classes: int) -> np.ndarray:
    """Return the records `[N, num_labels + 3072]` uint8 of a file of CIFAR's binary archives.

    A record is its labels, then the red, green and blue planes. The last label is one of
    `num_classes`; CIFAR-100's first label is one of 20.

    Raises:
      ArchiveError: a record is cut, there is none, or a label is out of range.
    """
    record_size, size = num_labels + _CIFAR_PIXELS, len(file.content)
    if size == 0 or size % record_size:
        published = (50_000 if file.is_named("train.bin") else 10_000) * record_size
        raise file.error(
            f"{size} bytes",
            f"{published} as published, or another multiple of {record_size}",
            f"An image and its labels are {record_size} bytes, and the file ends inside one",
        )
    records = np.frombuffer(file.content, np.uint8).reshape(-1, record_size)
    for column, classes in enumerate([20, num_classes][-num_labels:]):
        if (labels := records[:, column]).max() >= classes:
            row = int(labels.argmax())
            got = f"label {labels[row]} of image {row}"
            raise file.error(got, f"0 to {classes - 1}", f"There are {classes} classes")
    return records

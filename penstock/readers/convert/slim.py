"""TF-Slim's dataset files: records with its keys, its shards, `labels.txt`; MNIST and CIFAR-10.

TF-Slim reads CIFAR-10's Python archive, which is pickled: unpickling a download can run any code.
The binary archive holds the same images in the same order, and gives the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from penstock._image_resizing import encode_png
from penstock.readers import _archives
from penstock.readers.convert.download import Progress, RemoteFile, fetch, no_progress
from penstock.readers.convert.file_set import needs_making, write_together
from penstock.readers.records.features import build_example
from penstock.readers.records.framing import TFRECORD, Framing, RecordWriter

LABELS_FILENAME = "labels.txt"
_LOGGER = logging.getLogger("penstock")
_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist"
_MNIST_SHA256 = {
    "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
# "size" for six is TF-Slim's own spelling: programs that read its labels.txt have it.
MNIST_LABELS = (
    *("zero", "one", "two", "three", "four"),
    *("five", "size", "seven", "eight", "nine"),
)
CIFAR10_LABELS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def image_example(encoded: bytes, image_format: str, height: int, width: int, label: int) -> bytes:
    """Serialise one image as TF-Slim's converters do."""
    return build_example(
        {
            "image/encoded": encoded,
            "image/format": image_format,
            "image/class/label": label,
            "image/height": height,
            "image/width": width,
        }
    )


def write_labels(path: Path, names: Sequence[str]) -> Path:
    """Write `labels.txt`: one `id:name` a line, ids from 0."""
    check_label_names(names)
    lines = (f"{label}:{name}\n" for label, name in enumerate(names))
    path.write_text("".join(lines), encoding="utf-8")
    return path


def is_line(text: str) -> bool:
    r"""Say whether a text is one line, without bytes of a file's name that are no text.

    >>> is_line("two words"), is_line("two\nlines")
    (True, False)
    """
    # Python has such bytes as surrogates, which no file of text takes.
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in text)
    return is_text and text.splitlines() in ([], [text])


def check_label_names(names: Iterable[str]) -> None:
    r"""Raise unless each name fits into a line of `labels.txt`."""
    for name in names:
        if not is_line(name):
            raise ValueError(
                f"labels.txt got the class {name!r}, expected a name of one line of text. Each "
                "line of the file is a class. Rename it."
            )


def read_labels(folder: str | Path) -> dict[int, str]:
    """Return id -> name from `labels.txt`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is no `id:name`.
    """
    path = Path(folder) / LABELS_FILENAME
    names: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        # Once: a name may hold colons.
        label, colon, name = line.partition(":")
        if line and not (colon and label.strip().isdecimal()):
            raise ValueError(
                f"'{path}' got the line {line!r}, expected a number, a colon and the name of a "
                "class. Each line of the file is a class. Mend it."
            )
        if line:
            names[int(label)] = name
    return names


def shard_name(dataset_name: str, split: str, shard: int, num_shards: int) -> str:
    """Return TF-Slim's name of a shard.

    >>> shard_name("flowers", "train", 2, 5)
    'flowers_train_00002-of-00005.tfrecord'
    """
    return f"{dataset_name}_{split}_{shard:05d}-of-{num_shards:05d}.tfrecord"


def write_records(path: str | Path, payloads: Iterable[bytes], framing: Framing = TFRECORD) -> Path:
    """Write payloads to one record file, whole or not at all."""
    with RecordWriter(path, framing=framing) as writer:
        for payload in payloads:
            writer.write(payload)
    return Path(path)


def write_splits(
    targets: Sequence[Path], splits: Iterable[Iterable[bytes]], label_names: Sequence[str]
) -> None:
    """Write a file for the payloads of each split, and `labels.txt`, which is the last target."""
    with write_together(targets) as (*paths, labels_path):
        for path, payloads in zip(paths, splits, strict=True):
            write_records(path, payloads)
        write_labels(labels_path, label_names)
        # Inside the block: the old labels are still there to compare with.
        old = targets[-1]
        if old.is_file() and old.read_bytes() != labels_path.read_bytes():
            _LOGGER.warning(
                "'%s' holds other names and is replaced. One folder has one: give each dataset its "
                "own folder.",
                old,
            )


MNIST = {
    f"{name}-ubyte.gz": RemoteFile(url=f"{_MNIST_URL}/{name}-ubyte.gz", sha256=digest)
    for name, digest in _MNIST_SHA256.items()
}


def convert_mnist(
    dataset_dir: str | Path,
    *,
    sources: Mapping[str, RemoteFile] = MNIST,
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Make `mnist_train.tfrecord`, `mnist_test.tfrecord` and `labels.txt`.

    Args:
      dataset_dir: the folder of the files, and of the originals, which are downloaded if missing.
      sources: the four original files by name.
      force: rewrite files that exist already.
      progress: called with the file name, bytes so far and total bytes while downloading.

    Returns:
      The paths of the files.

    Raises:
      DownloadError: a file cannot be downloaded, or has another checksum.
      ArchiveError: a file is damaged, or holds something else.
    """
    targets = _list_targets(dataset_dir, "mnist")
    if needs_making(targets, force=force):
        originals = {
            name: fetch(source, dataset_dir, progress=progress) for name, source in sources.items()
        }
        pairs = (
            [originals[f"{prefix}-{part}-ubyte.gz"] for part in ("images-idx3", "labels-idx1")]
            for prefix in ("train", "t10k")
        )
        splits = (_build_examples(*_archives.read_mnist(*pair)) for pair in pairs)
        write_splits(targets, splits, MNIST_LABELS)
    return targets


def _list_targets(folder: str | Path, name: str) -> list[Path]:
    names = (f"{name}_train.tfrecord", f"{name}_test.tfrecord", LABELS_FILENAME)
    return [Path(folder) / name for name in names]


def _build_examples(images: np.ndarray, labels: np.ndarray) -> Iterator[bytes]:
    for image, label in zip(images, labels, strict=True):
        png = encode_png(image)
        yield image_example(png, "png", image.shape[0], image.shape[1], int(label))


CIFAR10 = RemoteFile(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def convert_cifar10(
    dataset_dir: str | Path,
    *,
    source: RemoteFile = CIFAR10,
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Make `cifar10_train.tfrecord`, `cifar10_test.tfrecord` and `labels.txt`.

    Args:
      dataset_dir: the folder of the files, and of the archive, which is downloaded if missing.
      source: the archive.
      force: rewrite files that exist already.
      progress: called with the file name, bytes so far and total bytes while downloading.

    Returns:
      The paths of the files.

    Raises:
      DownloadError: the archive cannot be downloaded, or has another checksum.
      ArchiveError: the archive is damaged, or holds something else.
    """
    targets = _list_targets(dataset_dir, "cifar10")
    if needs_making(targets, force=force):
        archive = fetch(source, dataset_dir, progress=progress)
        splits = (
            _build_cifar10_examples(archive, names) for names in _archives.CIFAR10_FILES.values()
        )
        write_splits(targets, splits, CIFAR10_LABELS)
    return targets


def _build_cifar10_examples(path: Path, batch_names: tuple[str, ...]) -> Iterator[bytes]:
    files = _archives.read_by_name(path, batch_names, _archives.CIFAR10_LIMITS)
    for name in batch_names:
        yield from _build_examples(*_archives.read_cifar(files.pop(name), 1, len(CIFAR10_LABELS)))

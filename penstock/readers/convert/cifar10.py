"""CIFAR-10 as TF-Slim's files, from the binary archive.

TF-Slim reads the Python archive, which is pickled: unpickling a download can run any code. The
binary archive holds the same images in the same order, and gives the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock._images import encode_png
from penstock.readers._archives import CIFAR10_LIMITS, read_by_name, read_cifar_records
from penstock.readers.convert.download import RemoteFile, fetch
from penstock.readers.convert.file_set import needs_making
from penstock.readers.convert.progress import Progress, no_progress
from penstock.readers.convert.slim import LABELS_FILENAME, image_example, write_splits

CIFAR10 = RemoteFile(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR10_LABELS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_PICKLED = ("cifar-10-python.tar.gz", "cifar-10-batches-py")
_BATCHES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
_SIZE = 32
_LOGGER = logging.getLogger("penstock")


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
    folder = Path(dataset_dir)
    names = [*(f"cifar10_{split}.tfrecord" for split in _BATCHES), LABELS_FILENAME]
    targets = [folder / name for name in names]
    if not needs_making(targets, force=force):
        return targets
    # Before the download of 170 MB that TF-Slim's users will not expect.
    _warn_of_pickled(folder, source)
    archive = fetch(source, dataset_dir, progress=progress)
    splits = (_build_examples(archive, batch_names) for batch_names in _BATCHES.values())
    write_splits(targets, splits, CIFAR10_LABELS)
    return targets


def _warn_of_pickled(folder: Path, source: RemoteFile) -> None:
    """Say why an archive that TF-Slim would take is not, before another one is downloaded."""
    found = [folder / name for name in _PICKLED if (folder / name).exists()]
    if found and not (folder / source.filename).exists():
        _LOGGER.warning(
            "'%s' is not used: it is pickled, and unpickling a file runs what it says. The same "
            "images come from %s, which is downloaded; or put it there yourself.",
            found[0],
            source.filename,
        )


def _build_examples(path: Path, batch_names: tuple[str, ...]) -> Iterator[bytes]:
    files = read_by_name(path, batch_names, CIFAR10_LIMITS)
    for name in batch_names:
        records = read_cifar_records(files.pop(name), 1, len(CIFAR10_LABELS))
        for label, image in zip(records[:, 0], records[:, 1:], strict=True):
            rows = image.reshape(3, _SIZE, _SIZE).transpose(1, 2, 0)
            png = encode_png(np.ascontiguousarray(rows))
            yield image_example(png, "png", _SIZE, _SIZE, int(label))

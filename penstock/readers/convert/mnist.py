"""MNIST as TF-Slim's files, from the original IDX files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock._images import encode_png
from penstock.readers._archives import read_mnist
from penstock.readers.convert.download import RemoteFile, fetch
from penstock.readers.convert.file_set import needs_making
from penstock.readers.convert.progress import Progress, no_progress
from penstock.readers.convert.slim import LABELS_FILENAME, image_example, write_splits

_BASE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist"
_SHA256 = {
    "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MNIST = {
    f"{name}-ubyte.gz": RemoteFile(url=f"{_BASE_URL}/{name}-ubyte.gz", sha256=digest)
    for name, digest in _SHA256.items()
}
# "size" for six is TF-Slim's own spelling: programs that read its labels.txt have it.
MNIST_LABELS = (
    *("zero", "one", "two", "three", "four"),
    *("five", "size", "seven", "eight", "nine"),
)
_PREFIXES = {"train": "train", "test": "t10k"}


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
    folder = Path(dataset_dir)
    names = [*(f"mnist_{split}.tfrecord" for split in _PREFIXES), LABELS_FILENAME]
    targets = [folder / name for name in names]
    if not needs_making(targets, force=force):
        return targets
    originals = {
        name: fetch(source, dataset_dir, progress=progress) for name, source in sources.items()
    }
    splits = (
        _build_examples(
            originals[f"{prefix}-images-idx3-ubyte.gz"], originals[f"{prefix}-labels-idx1-ubyte.gz"]
        )
        for prefix in _PREFIXES.values()
    )
    write_splits(targets, splits, MNIST_LABELS)
    return targets


def _build_examples(images_path: Path, labels_path: Path) -> Iterator[bytes]:
    images, labels = read_mnist(images_path, labels_path)
    for image, label in zip(images, labels, strict=True):
        height, width = image.shape
        yield image_example(encode_png(image[..., None]), "png", height, width, int(label))

"""Folders of images as a person has them: what in them is read, and what is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Folders beside `train` that are parts of the data; the first that is there is tested on.
PARTS = ("test", "validation", "val")
_OTHER_IMAGES = (".heic", ".heif", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")


def count_other_images(root: Path) -> dict[str, int]:
    """Return how many images a folder has that are not read, by the suffix of their names."""
    suffixes = (
        Path(name).suffix.lower()
        for _, _, names in os.walk(root)
        for name in names
        if not _is_hidden(name)
    )
    return dict(Counter(each for each in suffixes if each in _OTHER_IMAGES))


def has_images(path: Path) -> bool:
    """Say whether a folder has folders with images in them, as one of classes has."""
    return any(next(find_images(path / name), None) for name in list_folders(path))


def list_folders(path: Path) -> list[str]:
    """Return the names of the folders in a folder, in order, without hidden ones."""
    folders = (entry.name for entry in path.iterdir() if entry.is_dir())
    return sorted(name for name in folders if not _is_hidden(name))


def has_parts(root: Path) -> bool:
    """Say whether a folder's `train` is the part to train on, or a class of that name.

    A part has a folder for each class. A `train` with images and no folder beside `bus` is a class;
    beside nothing but `test` it is a part all the same, whose images nobody has sorted.
    """
    train = root / "train"
    if not train.is_dir():
        return False
    is_alone = all(name in (*PARTS, "train") for name in list_folders(root))
    return is_alone or bool(list_folders(train)) or next(find_images(train), None) is None


def find_damaged(paths: Sequence[str]) -> list[int]:
    """Return the indices of files that are no images, by their first and last bytes.

    Raises:
      OSError: the disk fails.
    """
    from penstock.readers.records.image_bytes import is_whole_image

    # Threads, as a folder may be on another machine, where each file is a question.
    with ThreadPoolExecutor(16) as pool:
        return [i for i, is_whole in enumerate(pool.map(is_whole_image, paths)) if not is_whole]


def find_images(root: Path) -> Iterator[str]:
    """Yield the paths of the images that are read, in a folder and below it."""
    # Here, as it imports numpy.
    from penstock.readers.images import SUFFIXES

    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in names:
            if name.lower().endswith(SUFFIXES) and not _is_hidden(name):
                yield os.path.join(parent, name)


def _is_hidden(name: str) -> bool:
    # As the reader of folders has it.
    return name.startswith(".") or name == "__MACOSX"

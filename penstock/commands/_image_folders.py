"""Folders of images as a person has them: what in them is read, and what is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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

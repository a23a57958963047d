"""Folders of images as a person has them: which part of one is which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

SplitName = Literal["train", "validation", "test"]
# The folders beside `train` that a split may be in, the first that is there. What only one of the
# others is there for is both: to choose the best network on, and to test it.
PARTS: Mapping[SplitName, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "val", "test"),
    "test": ("test", "validation", "val"),
}


def has_images(path: Path) -> bool:
    """Say whether a folder has folders with images in them, as one of classes has."""
    return any(next(find_images(path / name), None) for name in list_folders(path))


def list_folders(path: Path) -> list[str]:
    """Return the names of the folders in a folder, in order, without hidden ones."""
    # Here and below, as it imports numpy.
    from penstock.readers.images import is_hidden

    folders = (entry.name for entry in path.iterdir() if entry.is_dir())
    return sorted(name for name in folders if not is_hidden(name))


def has_parts(root: Path) -> bool:
    """Say whether a folder's `train` is the part to train on, or a class of that name.

    A part has a folder for each class. A `train` with images and no folder beside `bus` is a class;
    beside nothing but `test` it is a part all the same, whose images nobody has sorted.
    """
    train = root / "train"
    if not train.is_dir():
        return False
    is_alone = all(name in (*PARTS["test"], "train") for name in list_folders(root))
    return is_alone or bool(list_folders(train)) or next(find_images(train), None) is None


def find_images(root: Path) -> Iterator[str]:
    """Yield the paths of the images that are read, in a folder and below it."""
    from penstock.readers.images import SUFFIXES, walk_files

    return (file for file in walk_files(root) if file.lower().endswith(SUFFIXES))

"""Folders of images as a person has them, looked at without JAX."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Literal

from penstock._errors import listed, nearest
from penstock._files import expand_path
from penstock.commands._failures import UsageError

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


_RECORDS = "_train*.tfrecord"
_OTHER_PARTS = ("training", "testing", "tests", "valid", "dev", "eval", "evaluation")
_LAYOUT = "one folder of images per class in it, such as {0}/cat and {0}/dog"


def describe_folder(word: str, overrides: Container[str]) -> dict[str, str]:
    """Return the flags that name the data in a folder: `dataset_name` and `dataset_dir`.

    It has one folder of images per class, or such parts as `train` and `test`, or the record files
    of one data set. `overrides` are the flags beside it, which may not name other images.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "flags_train.tfrecord").touch()
    >>> describe_folder(str(folder), {})["dataset_name"]
    'flags'
    """
    if both := [f"--{name}" for name in ("dataset_name", "dataset_dir") if name in overrides]:
        raise UsageError(
            f"got the folder {word!r} and {' and '.join(both)}, expected one of the two. Both say "
            "which images to take."
        )
    path = expand_path(word)
    if not path.is_dir():
        raise _describe_missing(word, path)
    records = sorted({file.name.rsplit("_train", 1)[0] for file in path.glob(f"*{_RECORDS}")})
    if len(records) > 1:
        raise UsageError(
            f"got {word!r} with record files of {listed(records)}, expected those of one "
            f"data set. Name one: --dataset_name={records[0]} --dataset_dir={word}."
        )
    if not records:
        _check_classes(word, path)
    return {"dataset_name": records[0] if records else "image_folder", "dataset_dir": str(path)}


def _describe_missing(word: str, path: Path) -> UsageError:
    if path.exists():
        is_archive = path.name.lower().endswith((".zip", ".tar", ".gz", ".tgz", ".rar", ".7z"))
        todo = "Unpack it, and name" if is_archive else "Name"
        return UsageError(
            f"got the file {word!r}, expected a folder of images or flags. {todo} the folder that "
            "has one folder of images per class."
        )
    # Here, as they import JAX.
    from penstock import models, readers

    names = {"data set: --dataset": [*readers.dataset_names(), "image_folder"]}
    names |= {"network: --model": models.names()}
    for flag, folders in names.items():
        if word in folders:
            return UsageError(
                f"got {word!r}, expected a folder of images or flags. It is the name of a "
                f"{flag}_name={word}."
            )
    there = [folder.name for folder in path.parent.glob("*") if folder.is_dir()]
    return UsageError(
        f"got {word!r}, expected an existing folder of images, or flags: --NAME=VALUE."
        f"{nearest(path.name, there)} `penstock train --help` lists them."
    )


def _check_classes(word: str, path: Path) -> None:
    """Raise unless a folder has two classes at least, and an image in each."""
    _check_parts(word, path)
    # With such a part the others hold the images to test on.
    root = path / "train" if has_parts(path) else path
    shown = str(Path(word) / "train") if root != path else word.rstrip("/") or word
    layout = _LAYOUT.format(shown)
    classes = list_folders(root)
    if not classes:
        num_images = sum(1 for _ in find_images(root))
        images = "an image" if num_images == 1 else f"{num_images:,} images"
        what = f"{images} and no folder" if num_images else "no folder"
        todo = "Move each image into the folder of its class" if num_images else "Check the path"
        raise UsageError(
            f"got {word!r} with {what} in it, expected {layout}. Folders name the classes. {todo}."
        )
    empty = [name for name in classes if next(find_images(root / name), None) is None]
    if empty:
        from penstock.readers.images import SUFFIXES, list_images

        suffixes = sorted(list_images(root / empty[0])[1])
        convert = f", convert its {' and '.join(suffixes)} files to .jpg" if suffixes else ""
        raise UsageError(
            f"got {word!r} with no image in {listed(empty[:3])}, expected {layout}. Every folder "
            f"is a class; {', '.join(SUFFIXES)} are read. Put images there{convert}, or remove it."
        )
    # Here, as it imports numpy.
    from penstock.readers.convert.slim import is_line

    if broken := [name for name in classes if not is_line(name)]:
        raise UsageError(
            f"got {word!r} with the folder {broken[0]!r}, expected a name of one line of text. It "
            "is the name of a class. Rename the folder."
        )
    if len(classes) == 1:
        inner = list_folders(root / classes[0])
        why = "With one there is nothing to tell apart."
        if len(inner) > 1:
            why = f"Did you mean {str(Path(shown) / classes[0])!r}?"
        raise UsageError(
            f"got {word!r} with one class, {classes[0]!r}, expected two or more: {layout}. {why}"
        )


def _check_parts(word: str, path: Path) -> None:
    """Raise where folders look like parts of the data, but have other names than are read."""
    folders = list_folders(path)
    parts = ("train", *PARTS["test"])
    if not folders or not all(name.lower() in (*parts, *_OTHER_PARTS) for name in folders):
        return
    if "train" in folders and any(name in folders for name in parts[1:]):
        return
    if folders == ["train"]:
        raise UsageError(
            f"got {word!r} with 'train' alone, expected a folder 'test' or 'val' beside it. There "
            f"is nothing to test on. To hold some out: penstock train {Path(word) / 'train'}"
        )
    raise UsageError(
        f"got {word!r} with the folders {listed(folders)}, expected 'train' and 'test', or "
        "'train' and 'val'. By any other name they would be classes. Rename them."
    )

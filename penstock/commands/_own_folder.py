"""A folder of one's own data, as `penstock train photos/` names it; looked at without JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from penstock._errors import listed, nearest
from penstock._paths import expand_path
from penstock.commands._checks import UsageError

_RECORDS = "_train*.tfrecord"
_LAYOUT = "a folder of images for each class in it, such as {0}/cat and {0}/dog"


def describe_folder(word: str) -> dict[str, str]:
    """Return the flags that name the data in a folder: `dataset_name` and `dataset_dir`.

    Arguments:
      word: the folder: of a folder of images for each class, or of such parts as `train` and
        `test`; or of the record files of one data set.

    Raises:
      UsageError: it is no folder, or has no two classes.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "flags_train.tfrecord").touch()
    >>> describe_folder(str(folder))["dataset_name"]
    'flags'
    """
    path = expand_path(word)
    if not path.is_dir():
        raise _describe_missing(word, path)
    records = sorted({each.name.rsplit("_train", 1)[0] for each in path.glob(f"*{_RECORDS}")})
    if len(records) > 1:
        raise UsageError(
            f"got {word!r} with record files of {listed(records)}, expected those of one "
            f"data set. Name one: --dataset_name={records[0]} --dataset_dir={word}."
        )
    if not records:
        _check_classes(word, path)
    return {"dataset_name": records[0] if records else "image_folder", "dataset_dir": str(path)}


def _describe_missing(word: str, path: Path) -> UsageError:
    from penstock.commands._flags.data import list_datasets

    if path.exists():
        return UsageError(f"got the file {word!r}, expected a folder of images or flags.")
    if word in list_datasets():
        return UsageError(
            f"got {word!r}, expected a folder of images or flags. It is the name of a data "
            f"set: --dataset_name={word}."
        )
    parent = path.parent
    there = [each.name for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
    return UsageError(
        f"got {word!r}, expected a folder of images that is there, or flags: --NAME=VALUE."
        f"{nearest(path.name, there)} `penstock train --help` says more."
    )


def _check_classes(word: str, path: Path) -> None:
    """Raise unless a folder has two classes at least, and an image in each."""
    # With such a part the others hold the images to test on.
    root = path / "train" if (path / "train").is_dir() else path
    shown = str(Path(word) / "train") if root != path else word.rstrip("/") or word
    layout = _LAYOUT.format(shown)
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    classes = [name for name in classes if not _is_hidden(name)]
    if not classes:
        num_images = sum(1 for _ in _find_images(root))
        what = f"{num_images:,} images and no folder" if num_images else "no folder"
        todo = "Move each image into the folder of its class" if num_images else "Check the path"
        raise UsageError(
            f"got {word!r} with {what} in it, expected {layout}. The folders' names are the "
            f"classes. {todo}."
        )
    empty = [name for name in classes if next(_find_images(root / name), None) is None]
    if empty:
        raise UsageError(
            f"got {word!r} with no .jpg or .png image in {listed(empty[:3])}, expected "
            f"{layout}. Every folder is a class. Put images there, or remove it."
        )
    if len(classes) == 1:
        raise UsageError(
            f"got {word!r} with one class, {classes[0]!r}, expected two or more: {layout}. "
            "With one there is nothing to tell apart."
        )


def _find_images(root: Path) -> Iterator[str]:
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

"""A folder of one's own data, as `penstock train photos/` names it; looked at without JAX."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._errors import listed, nearest
from penstock._files import expand_path
from penstock.commands._checks import UsageError
from penstock.commands._image_folders import (
    PARTS,
    find_images,
    has_parts,
    list_folders,
)

if TYPE_CHECKING:
    from penstock.commands._argument_parser import FlagValue

_RECORDS = "_train*.tfrecord"
_OTHER_PARTS = ("training", "testing", "tests", "valid", "dev", "eval", "evaluation")
_LAYOUT = "one folder of images per class in it, such as {0}/cat and {0}/dog"


def describe_folder(word: str) -> dict[str, str]:
    """Return the flags that name the data in a folder: `dataset_name` and `dataset_dir`.

    Arguments:
      word: the folder: with one folder of images per class, or with such parts as `train` and
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
        is_archive = path.name.lower().endswith((".zip", ".tar", ".gz", ".tgz", ".rar", ".7z"))
        todo = "Unpack it, and name" if is_archive else "Name"
        return UsageError(
            f"got the file {word!r}, expected a folder of images or flags. {todo} the folder that "
            "has one folder of images per class."
        )
    if word in list_datasets():
        return UsageError(
            f"got {word!r}, expected a folder of images or flags. It is the name of a data "
            f"set: --dataset_name={word}."
        )
    # Here, as it imports JAX.
    from penstock import models

    if word in models.names():
        return UsageError(
            f"got {word!r}, expected a folder of images or flags. It is the name of a network: "
            f"--model_name={word}."
        )
    parent = path.parent
    there = [each.name for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
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
            f"got {word!r} with {what} in it, expected {layout}. The folders' names are the "
            f"classes. {todo}."
        )
    empty = [name for name in classes if next(find_images(root / name), None) is None]
    if empty:
        from penstock.readers.images import OTHER_SUFFIXES, SUFFIXES, walk_files

        suffixes = {Path(file).suffix.lower() for file in walk_files(root / empty[0])}
        others = sorted(suffixes & {*OTHER_SUFFIXES})
        convert = f", convert its {' and '.join(others)} files to .jpg" if others else ""
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
            f"is nothing to test on. To hold a tenth out: penstock train {Path(word) / 'train'}"
        )
    raise UsageError(
        f"got {word!r} with the folders {listed(folders)}, expected 'train' and 'test', or "
        "'train' and 'val'. By any other name they would be classes. Rename them."
    )


def leave_out_damaged(
    data: Mapping[str, str], given: Mapping[str, FlagValue]
) -> Mapping[str, FlagValue]:
    """Return flags that leave out what cannot be read, unless they say otherwise.

    A file that is no picture is no reason to train on none of a folder of photos. Of a set of
    records, which a program has written, damage is unexpected, and stays an error.

    Arguments:
      data: what `describe_folder` says of the folder.
      given: the names and values of the flags on the command line.
    """
    if data["dataset_name"] != "image_folder":
        return given
    from penstock.commands._flags import TRAIN_FLAGS
    from penstock.commands._flags.config_file import read_config

    config = given.get("config")
    configured = {} if config is None else read_config(str(config), TRAIN_FLAGS)
    return {"skip_damaged": True, **configured, **given}


def check_alone(word: str, given: Container[str], purpose: str) -> None:
    """Raise where flags name other images than a folder.

    Arguments:
      given: the names of the flags on the command line.
      purpose: what the images are for: "train on".

    Raises:
      UsageError: they do.
    """
    both = [f"--{name}" for name in ("dataset_name", "dataset_dir") if name in given]
    if both:
        raise UsageError(
            f"got the folder {word!r} and {' and '.join(both)}, expected one of the two. Both say "
            f"which images to {purpose}."
        )

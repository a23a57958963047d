"""The splits of data sets, as they are stored: named sets, record files, folders of images."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock import readers
from penstock._errors import listed, nearest
from penstock.commands._checks import split_words
from penstock.commands._flags import DatasetFlags, TrainFlags
from penstock.commands._flags.data import PreprocessingFlags, list_datasets
from penstock.commands._image_folders import PARTS, SplitName, has_parts
from penstock.commands._run.samples import BatchReader
from penstock.readers.convert import read_labels
from penstock.readers.datasets.registry import DATASETS, find_folder
from penstock.readers.datasets.splits import Subset, choose_held_out
from penstock.readers.images import check_damaged, describe_left_out, find_damaged
from penstock.readers.records import ReadOptions, RecordReader

Decode = Callable[[Any], object]
MakeReader = Callable[..., Any]
OnError = Literal["raise", "skip"]

# The part that is held out where the data have no parts.
_TENTH = "a tenth held out"

# Sets whose record files have TF-Slim's keys, and how many channels their images have.
_SLIM = {"mnist": 1, "fashion_mnist": 1, "cifar10": 3, "cifar100": 3, "flowers": 3}
_NUM_CLASSES = {"cifar100": 100, "flowers": 5, **dict.fromkeys(("mnist", "cifar10"), 10)}
_NUM_CLASSES |= {"digits": 10, "fashion_mnist": 10}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """The samples of one split, as they are stored.

    Arguments:
      part: the name of the part of the data that it is, such as `val`.
      make: makes a reader of them; takes the fields of `ReadOptions` that all readers have.
      num_samples: how many there are.
      first: the first of them.
      num_classes: where the data set says it.
      largest_label: of sets in memory.
      class_names: where the data set says them.
      notes: sentences about it: what is left out.
      files: the paths of its images in their folder, where each is a file.
    """

    part: str
    make: MakeReader
    num_samples: int
    first: object
    num_classes: int | None = None
    largest_label: int | None = None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None

    @property
    def names_digest(self) -> str | None:
        """What tells other names of its images; None where they have none."""
        if self.files is None:
            return None
        names = "\0".join(self.files).encode("utf-8", "surrogateescape")
        return hashlib.sha256(names).hexdigest()[:16]

    def read(self, options: ReadOptions) -> BatchReader:
        """Return a reader of the split."""
        return _read(self.make, options)


def _read(make: MakeReader, options: ReadOptions) -> BatchReader:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    # Not every reader takes them.
    del values["name"], values["pad"]
    return make(**values)


def open_split(flags: TrainFlags, split: SplitName) -> Split:
    """Open a split of the data set that flags name.

    Raises:
      DatasetNotFoundError, FileNotFoundError: there are no such files.
      ValueError: no such split, or something that is not readable.
    """
    dataset, on_error = flags.dataset, flags.preprocessing.on_error
    name, folder = dataset.dataset_name, Path(dataset.dataset_dir or ".")
    part = find_part(dataset, split)
    files = _list_files(dataset, split)
    if files:
        make = _read_files(dataset, _find_files(folder, files))
    elif name == "image_folder":
        return _open_folder(folder, part, split, flags.preprocessing)
    elif name not in DATASETS:
        make = _read_files(dataset, _find_files_of_part(dataset, part))
    else:
        make, folder = _read_named(dataset, part), find_folder(name, dataset.dataset_dir)
    return _describe(make, part, name, folder, on_error)


def find_part(dataset: DatasetFlags, split: SplitName) -> str:
    """Return the name of the part of the data that a split is.

    Two splits are one part where there is none that the other could be: what the best network is
    chosen on, and what it is tested on.

    Raises:
      DatasetNotFoundError: there is none.
    """
    name, folder = dataset.dataset_name, Path(dataset.dataset_dir or ".")
    if files := _list_files(dataset, split):
        return ",".join(files)
    if name == "image_folder":
        is_there = {part: (folder / part).is_dir() for part in PARTS[split]}
        if not has_parts(folder):
            return _TENTH if split != "train" else ""
        missing = (
            f"{str(folder)!r} got no folder {listed(PARTS[split])}, expected one beside 'train'. "
            "There is nothing to test on. Put images there, in one folder per class."
        )
    elif name not in DATASETS:
        is_there = {part: bool(_find_files_of_part(dataset, part)) for part in PARTS[split]}
        missing = (
            f"{str(folder)!r} got no file {name}_{PARTS[split][-1]}*.tfrecord, expected one, or "
            f"--{'train' if split == 'train' else 'eval'}_files." + nearest(name, list_datasets())
        )
    else:
        known = readers.dataset_splits(name)
        is_there = {part: part in known for part in PARTS[split]}
        missing = f"--dataset_name={name} got no {split} split, expected one of {listed(known)}."
    parts = [part for part, is_part in is_there.items() if is_part]
    if not parts:
        raise readers.DatasetNotFoundError(missing)
    return parts[0]


def _list_files(dataset: DatasetFlags, split: SplitName) -> tuple[str, ...]:
    return split_words(dataset.train_files if split == "train" else dataset.eval_files)


def _find_files_of_part(dataset: DatasetFlags, part: str) -> list[str]:
    folder = Path(dataset.dataset_dir or ".")
    return sorted(map(str, folder.glob(f"{dataset.dataset_name}_{part}*.tfrecord")))


def _read_named(flags: DatasetFlags, part: str) -> MakeReader:
    """Return what reads a data set of the registry."""
    return functools.partial(
        readers.dataset,
        flags.dataset_name,
        part,
        dataset_dir=flags.dataset_dir,
        # Photographs keep their sizes, for a preprocessing to crop.
        image_shape=(None, None, 3) if flags.dataset_name == "flowers" else None,
    )


def _read_files(flags: DatasetFlags, paths: Sequence[str]) -> MakeReader:
    """Return what reads TFRecord files: with TF-Slim's keys, or as a user's own set parses them."""
    name = flags.dataset_name
    own = None if name in _SLIM or name not in DATASETS else _load_record_set(flags)
    if own is None:
        features = {
            "image": readers.ImageFeature((None, None, _SLIM.get(name, 3)), key="image/encoded"),
            "label": readers.FixedLenFeature((), "int32", key="image/class/label"),
        }
        return functools.partial(readers.tfrecord, paths, features)

    def make(decode: Decode | None = None, **options: Any) -> RecordReader:
        chain = [each for each in (own.parse_fn, decode) if each is not None]
        return readers.tfrecord(paths, own.features, decode=_Chain(tuple(chain)), **options)

    return make


def _load_record_set(flags: DatasetFlags) -> readers.RecordSet | None:
    """Return how a user's own data set parses its records; None where it holds something else."""
    request = readers.DatasetRequest(
        name=flags.dataset_name,
        split="train",
        folder=find_folder(flags.dataset_name, flags.dataset_dir),
    )
    loaded = DATASETS[flags.dataset_name].load(request)
    return loaded if isinstance(loaded, readers.RecordSet) else None


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Functions of a sample, one after another; a class, as it travels to processes."""

    functions: tuple[Decode, ...]

    def __call__(self, sample: object) -> object:
        for function in self.functions:
            sample = function(sample)
        return sample


def _open_folder(root: Path, part: str, split: SplitName, read: PreprocessingFlags) -> Split:
    """Return the images of a split of a folder of classes."""
    is_parted = has_parts(root)
    path = root / part if is_parted else root
    source = readers.ImageFolder(path, shorter_side=read.cache_image_size)
    if is_parted and split != "train":
        _check_same_classes(path, source.class_names, root / "train")
    # Before a tenth is held out, which stays the same when these files are removed.
    damaged = find_damaged(source.files) if read.on_error == "skip" else []
    notes = check_damaged(source, damaged)
    if source.left_out:
        notes += (f"{str(path)!r}: {describe_left_out(source.left_out)}",)
    rows = np.setdiff1d(np.arange(len(source)), damaged)
    if not is_parted:
        # Without folders for the splits a tenth is held out.
        is_held_out = choose_held_out(source.labels[rows], share=10)
        rows = rows[is_held_out if split != "train" else ~is_held_out]
        # They are the same files.
        notes = notes if split == "train" else ()
    if not len(rows):
        raise readers.DatasetNotFoundError(
            f"{str(root)!r} got too few images to hold a tenth of them out. Put those to test on "
            "in a folder 'test' beside 'train'."
        )
    is_whole = is_parted and not damaged
    images = source if is_whole else Subset(source, rows)
    make = functools.partial(readers.indexed, images)
    names = source.class_names
    return dataclasses.replace(
        _describe(make, part, "image_folder", root, read.on_error),
        num_classes=len(names),
        class_names=names,
        notes=notes,
        # In its own folder, which may be moved.
        files=tuple(source.files[row].removeprefix(f"{path}{os.sep}") for row in rows),
    )


def _check_same_classes(part: Path, names: tuple[str, ...], train: Path) -> None:
    """Raise unless two parts have the same classes, for a label is the number of its class."""
    known = readers.ImageFolder(train).class_names
    if names == known:
        return
    missing = [name for name in known if name not in names]
    more = [name for name in names if name not in known]
    what = f"no class {listed(missing[:3])}" if missing else f"the class {listed(more[:3])}"
    beside = f"the {len(known)} classes of {str(train)!r}"
    todo = "Put its images there" if missing else "Remove it, or add it to those"
    raise ValueError(
        f"{str(part)!r} got {what}, expected {beside}. Both parts need the same folders. {todo}."
    )


def _describe(make: MakeReader, part: str, name: str, folder: Path, on_error: OnError) -> Split:
    """Return a split with what its first sample, its arrays and a `labels.txt` say of it."""
    # No worker is started for one sample.
    options = ReadOptions(on_error=on_error, num_workers=0, look_ahead=0)
    reader = _read(make, options)
    labels = _read_class_names(folder)
    num_classes = len(labels) if labels else _NUM_CLASSES.get(name)
    data = getattr(reader, "data", None)
    largest = int(np.max(data["label"])) if isinstance(data, dict) and "label" in data else None
    if num_classes is None and largest is not None:
        num_classes = largest + 1
    if labels is None and name in ("digits", "mnist"):
        labels = tuple(map(str, range(num_classes or 0)))
    return Split(
        part=part,
        make=make,
        num_samples=len(reader),
        first=next(reader()),
        num_classes=num_classes,
        largest_label=largest,
        class_names=labels,
    )


def _read_class_names(folder: Path) -> tuple[str, ...] | None:
    try:
        labels = read_labels(folder)
    # There need not be one, and a file of that name may be another program's.
    except (OSError, ValueError):
        return None
    return tuple(labels.get(i, str(i)) for i in range(max(labels) + 1)) if labels else None


def _find_files(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the paths of files in a folder, in order.

    Raises:
      FileNotFoundError: one is not there; names what is.
    """
    paths: list[str] = []
    for name in names:
        found = glob.glob(str(folder / name))
        if not found:
            there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
            what = "no file of that name" if folder.is_dir() else "no folder of that name"
            raise FileNotFoundError(
                f"{str(folder / name)!r} got {what}, expected a TFRecord file. "
                f"--dataset_dir and --train_files say where it is.{nearest(name, there)}"
            )
        paths += found
    return sorted(paths)

"""The splits of data sets, as they are stored: named sets, record files, folders of images."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock import readers
from penstock._errors import listed, nearest
from penstock.commands._checks import split_words
from penstock.commands._flags import DatasetFlags, TrainFlags
from penstock.commands._flags.data import PreprocessingFlags, list_datasets
from penstock.commands._image_folders import PARTS, find_damaged, has_parts
from penstock.commands._run.samples import BatchReader
from penstock.readers.convert import read_labels
from penstock.readers.datasets.registry import DATASETS, find_folder
from penstock.readers.datasets.splits import Subset, fixed_split
from penstock.readers.records import ReadOptions, RecordReader

Decode = Callable[[Any], object]
MakeReader = Callable[..., Any]
SplitName = Literal["train", "test"]
OnError = Literal["raise", "skip"]

# Files that are named where some are left out.
_MOST_NAMED = 3

# Sets whose record files have TF-Slim's keys, and how many channels their images have.
_SLIM = {"mnist": 1, "fashion_mnist": 1, "cifar10": 3, "cifar100": 3, "flowers": 3}
_NUM_CLASSES = {"cifar100": 100, "flowers": 5, **dict.fromkeys(("mnist", "cifar10"), 10)}
_NUM_CLASSES |= {"digits": 10, "fashion_mnist": 10}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """The samples of one split, as they are stored.

    Arguments:
      make: makes a reader of them; takes the fields of `ReadOptions` that all readers have.
      num_samples: how many there are.
      first: the first of them.
      num_classes: where the data set says it.
      largest_label: of sets in memory.
      class_names: where the data set says them.
      notes: sentences about it: what is left out.
      names_digest: of the names of its images, where each is a file.
    """

    make: MakeReader
    num_samples: int
    first: object
    num_classes: int | None = None
    largest_label: int | None = None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    names_digest: str | None = None

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
    files = split_words(dataset.train_files if split == "train" else dataset.eval_files)
    if files:
        return _describe(_read_files(dataset, _find_files(folder, files)), name, folder, on_error)
    if name == "image_folder":
        found = _open_folder(folder, split, flags.preprocessing)
        opened = _describe(functools.partial(readers.indexed, found.source), name, folder, on_error)
        names = found.class_names
        return dataclasses.replace(
            opened,
            num_classes=len(names),
            class_names=names,
            notes=found.notes,
            names_digest=found.names_digest,
        )
    if name not in DATASETS:
        files = _find_files_of_split(dataset, split)
        return _describe(_read_files(dataset, files), name, folder, on_error)
    stored = find_folder(name, dataset.dataset_dir)
    return _describe(_read_named(dataset, split), name, stored, on_error)


def _read_named(flags: DatasetFlags, split: SplitName) -> MakeReader:
    """Return what reads a data set of the registry.

    Raises:
      DatasetNotFoundError: it has no such split.
    """
    known = readers.dataset_splits(flags.dataset_name)
    found = [s for s in (["train"] if split == "train" else PARTS) if s in known]
    if not found:
        raise readers.DatasetNotFoundError(
            f"--dataset_name={flags.dataset_name} got no {split} split, expected one of "
            f"{listed(known)}."
        )
    return functools.partial(
        readers.dataset,
        flags.dataset_name,
        found[0],
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


class _Folder(NamedTuple):
    """The images of a split of a folder, by index, and what to say of them."""

    source: readers.ImageFolder | Subset
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    names_digest: str


def _open_folder(root: Path, split: SplitName, read: PreprocessingFlags) -> _Folder:
    """Return the images of a split of a folder of classes."""
    is_parted = has_parts(root)
    names = ["train"] if split == "train" else PARTS
    parts = [root / name for name in names if (root / name).is_dir()]
    if is_parted and not parts:
        raise readers.DatasetNotFoundError(
            f"{str(root)!r} got no folder {listed(PARTS)}, expected one beside 'train'. "
            "There is nothing to test on. Put images there, in one folder per class."
        )
    source = readers.ImageFolder(
        parts[0] if is_parted else root, shorter_side=read.cache_image_size
    )
    if is_parted and split == "test":
        _check_same_classes(parts[0], source.class_names, root / "train")
    # Before a tenth is held out, which stays the same when these files are removed.
    damaged = find_damaged(source.files) if read.on_error == "skip" else []
    notes = _check_damaged(source, damaged)
    rows = np.setdiff1d(np.arange(len(source)), damaged)
    if not is_parted:
        # Without folders for the splits a tenth is held out.
        rows = rows[fixed_split(len(rows), split, test_share=10)]
        # They are the same files.
        notes = notes if split == "train" else ()
    if not len(rows):
        raise readers.DatasetNotFoundError(
            f"{str(root)!r} got too few images to hold a tenth of them out. Put those to test on "
            "in a folder 'test' beside 'train'."
        )
    is_whole = is_parted and not damaged
    # In its own folder, which may be moved.
    inside = (source.files[row].removeprefix(f"{source.path}{os.sep}") for row in rows)
    return _Folder(
        source if is_whole else Subset(source, rows),
        source.class_names,
        notes,
        hashlib.sha256("\0".join(inside).encode("utf-8", "surrogateescape")).hexdigest()[:16],
    )


def _check_damaged(source: readers.ImageFolder, damaged: Sequence[int]) -> tuple[str, ...]:
    """Return what to say of files that are no images.

    Raises:
      ValueError: a class has no other.
    """
    files = [os.path.relpath(source.files[index], source.path) for index in damaged]
    lost = Counter(Path(name).parts[0] for name in files)
    there = Counter(Path(os.path.relpath(name, source.path)).parts[0] for name in source.files)
    for name, count in lost.items():
        if count == there[name]:
            first = next(each for each in files if Path(each).parts[0] == name)
            raise ValueError(
                f"{str(source.path)!r} got no image that can be read in {name!r}, expected some in "
                f"the folder of each class. Its files, such as {first!r}, are empty, cut off or of "
                "another kind. Put images there, or remove it."
            )
    if not files:
        return ()
    more = f" and {len(files) - _MOST_NAMED:,} more" if len(files) > _MOST_NAMED else ""
    what = "file that is not a whole" if len(files) == 1 else "files that are not whole"
    kinds = "JPEG or PNG" if len(files) == 1 else "JPEGs or PNGs"
    named = ", ".join(map(repr, files[:_MOST_NAMED]))
    return (f"left out of {str(source.path)!r}: {len(files):,} {what} {kinds}, {named}{more}",)


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


def _describe(make: MakeReader, name: str, folder: Path, on_error: OnError) -> Split:
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
            what = "in the folder" if folder.is_dir() else "for there is no such folder"
            raise FileNotFoundError(
                f"{str(folder / name)!r} got nothing, expected a TFRecord file {what}. "
                f"--dataset_dir and --train_files say where it is.{nearest(name, there)}"
            )
        paths += found
    return sorted(paths)


def _find_files_of_split(flags: DatasetFlags, split: SplitName) -> list[str]:
    """Return the files of a split by the data set's name, where no flag names them.

    Raises:
      DatasetNotFoundError: there are none.
    """
    names = [split] if split == "train" else list(PARTS)
    folder = Path(flags.dataset_dir or ".")
    for name in names:
        found = sorted(map(str, folder.glob(f"{flags.dataset_name}_{name}*.tfrecord")))
        if found:
            return found
    raise readers.DatasetNotFoundError(
        f"{str(folder)!r} got no file {flags.dataset_name}_{names[0]}*.tfrecord, expected one, or "
        f"--{'train' if split == 'train' else 'eval'}_files."
        + nearest(flags.dataset_name, list_datasets())
    )

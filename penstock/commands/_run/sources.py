"""Where the samples of a split come from: named data sets, record files, folders of images."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock import readers
from penstock._errors import listed, nearest
from penstock.commands._checks import split_words
from penstock.commands._flags import DatasetFlags
from penstock.commands._flags.data import known_datasets
from penstock.commands._run.folder import TEST_SPLITS
from penstock.readers.convert import read_labels
from penstock.readers.datasets._images import Subset
from penstock.readers.datasets._registry import DATASETS, folder_of
from penstock.readers.datasets._split import fixed_split

# Those whose record files have TF-Slim's keys, and how many channels their images have.
OnError = Literal["raise", "skip"]

_SLIM = {"mnist": 1, "fashion_mnist": 1, "cifar10": 3, "cifar100": 3, "flowers": 3}
_NUM_CLASSES = {"cifar100": 100, "flowers": 5, **dict.fromkeys(("mnist", "cifar10"), 10)}
_NUM_CLASSES |= {"digits": 10, "fashion_mnist": 10}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The samples of one split, as they are stored.

    Arguments:
      make: makes a reader of them with `readers.records.ReadOptions` as arguments.
      num_samples: how many there are.
      first: the first of them.
      num_classes: where the source knows it.
      largest_label: of sets in memory.
      class_names: where it knows them.
    """

    make: Callable[..., Any]
    num_samples: int
    first: Any
    num_classes: int | None = None
    largest_label: int | None = None
    class_names: tuple[str, ...] | None = None


def open_source(flags: DatasetFlags, split: str, on_error: OnError = "raise") -> Source:
    """Open the `"train"` or `"test"` split.

    Arguments:
      on_error: what is done with samples that cannot be read, as readers take it.

    Raises:
      DatasetNotFoundError, FileNotFoundError: there are no such files.
      ValueError: no such split, or something that is not readable.
    """
    files = split_words(flags.train_files if split == "train" else flags.eval_files)
    if files:
        return _of_files(flags, _paths(flags, files), on_error)
    if flags.dataset_name == "image_folder":
        return _of_folder(flags, split, on_error)
    if flags.dataset_name not in DATASETS:
        return _of_files(flags, _found_beside(flags, split), on_error)
    return _named(flags, split, on_error)


def _named(flags: DatasetFlags, split: str, on_error: OnError) -> Source:
    # Photographs keep their sizes, for a preprocessing to crop.
    shape = (None, None, 3) if flags.dataset_name == "flowers" else None
    splits = readers.dataset_splits(flags.dataset_name)
    names = [s for s in (["train"] if split == "train" else TEST_SPLITS) if s in splits]
    if not names:
        raise readers.DatasetNotFoundError(
            f"--dataset_name={flags.dataset_name} got no {split} split, expected one of "
            f"{listed(splits)}."
        )

    def make(**options: Any) -> Any:
        return readers.dataset(
            flags.dataset_name,
            names[0],
            dataset_dir=flags.dataset_dir,
            image_shape=shape,
            **options,
        )

    folder = folder_of(flags.dataset_name, flags.dataset_dir)
    return _source(make, flags.dataset_name, folder, on_error)


def _of_files(flags: DatasetFlags, paths: Sequence[str], on_error: OnError) -> Source:
    name = flags.dataset_name
    registered = None if name in _SLIM or name not in DATASETS else _registered(flags)
    features = {
        "image": readers.ImageFeature((None, None, _SLIM.get(name, 3)), key="image/encoded"),
        "label": readers.FixedLenFeature((), "int32", key="image/class/label"),
    }

    def make(decode: Any = None, **options: Any) -> Any:
        if registered is None:
            return readers.tfrecord(paths, features, decode=decode, **options)
        chain = [each for each in (registered.parse_fn, decode) if each is not None]
        return readers.tfrecord(paths, registered.features, decode=_Chain(tuple(chain)), **options)

    return _source(make, name, Path(flags.dataset_dir or "."), on_error)


def _registered(flags: DatasetFlags) -> readers.RecordSet | None:
    """Return how one's own data set parses its records; None where it holds something else."""
    request = readers.DatasetRequest(
        name=flags.dataset_name,
        split="train",
        folder=folder_of(flags.dataset_name, flags.dataset_dir),
    )
    loaded = DATASETS[flags.dataset_name].load(request)
    return loaded if isinstance(loaded, readers.RecordSet) else None


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Functions of a sample, one after another; a class, as it travels to processes."""

    functions: tuple[Callable[[Any], Any], ...]

    def __call__(self, sample: Any) -> Any:
        for function in self.functions:
            sample = function(sample)
        return sample


def _of_folder(flags: DatasetFlags, split: str, on_error: OnError) -> Source:
    root = Path(flags.dataset_dir or ".")
    own = [root / name for name in (["train"] if split == "train" else TEST_SPLITS)]
    parts = [path for path in own if path.is_dir()]
    has_parts = (root / "train").is_dir()
    if has_parts and not parts:
        raise readers.DatasetNotFoundError(f"{str(root)!r} got no folder {listed(TEST_SPLITS)}.")
    source: Any = readers.ImageFolder(parts[0] if has_parts else root)
    names = source.class_names
    if not has_parts:  # a tenth is held out
        rows = fixed_split(len(source), split, test_share=10)
        if not len(rows):
            raise readers.DatasetNotFoundError(
                f"{str(root)!r} got too few images to hold some out."
            )
        source = Subset(source, rows)

    def make(**options: Any) -> Any:
        return readers.indexed(source, **options)

    made = _source(make, "image_folder", root, on_error)
    return dataclasses.replace(made, num_classes=len(names), class_names=names)


def _source(make: Callable[..., Any], name: str, folder: Path, on_error: OnError) -> Source:
    reader = make(batch_size=None, on_error=on_error)
    labels = _labels_in(folder)
    num_classes = len(labels) if labels else _NUM_CLASSES.get(name)
    data = getattr(reader, "data", None)
    largest = int(np.max(data["label"])) if isinstance(data, dict) and "label" in data else None
    if num_classes is None and largest is not None:
        num_classes = largest + 1
    options = {"on_error": on_error, **_in_this_thread(reader)}
    first = next(iter(make(batch_size=None, **options)))
    names = labels or (_digits(num_classes) if name in ("digits", "mnist") else None)
    return Source(
        make=make,
        num_samples=len(reader),
        first=first,
        num_classes=num_classes,
        largest_label=largest,
        class_names=names,
    )


def _in_this_thread(reader: Any) -> dict[str, int]:
    return {"num_workers": 0, "look_ahead": 0} if not hasattr(reader, "data") else {}


def _digits(count: int | None) -> tuple[str, ...]:
    return tuple(map(str, range(count or 0)))


def _labels_in(folder: Path) -> tuple[str, ...] | None:
    try:
        labels = read_labels(folder)
    except (OSError, ValueError):
        return None
    return tuple(labels.get(i, str(i)) for i in range(max(labels) + 1)) if labels else None


def _paths(flags: DatasetFlags, files: Sequence[str]) -> list[str]:
    """Return the paths of files, in order.

    Raises:
      FileNotFoundError: one is not there; names what is.
    """
    folder = Path(flags.dataset_dir or ".")
    paths: list[str] = []
    for name in files:
        found = sorted(glob.glob(str(folder / name)))
        if not found:
            there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
            what = "in the folder" if folder.is_dir() else "for there is no such folder"
            raise FileNotFoundError(
                f"{str(folder / name)!r} got nothing, expected a TFRecord file {what}. "
                f"--dataset_dir and --train_files say where it is.{nearest(name, there)}"
            )
        paths += found
    return sorted(paths)


def _found_beside(flags: DatasetFlags, split: str) -> list[str]:
    """Return the files of a split of a data set that nothing but --train_files names."""
    names = [split] if split == "train" else list(TEST_SPLITS)
    folder = Path(flags.dataset_dir or ".")
    for name in names:
        found = sorted(map(str, folder.glob(f"{flags.dataset_name}_{name}*.tfrecord")))
        if found:
            return found
    raise readers.DatasetNotFoundError(
        f"{str(folder)!r} got no file {flags.dataset_name}_{names[0]}*.tfrecord, expected one, or "
        f"--{'train' if split == 'train' else 'eval'}_files."
        + nearest(flags.dataset_name, known_datasets())
    )

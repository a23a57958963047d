"""The splits of data sets, as they are stored: named sets, record files, folders of images."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from penstock import readers
from penstock._errors import listed, nearest
from penstock.commands._failures import nearest_path, split_words
from penstock.commands._flags import DatasetFlags, TrainFlags, list_datasets
from penstock.commands._image_folders import PARTS, SplitName, has_parts
from penstock.preprocessing import SamplePreprocessing
from penstock.readers.convert import read_labels
from penstock.readers.datasets.registry import DATASETS, find_folder
from penstock.readers.datasets.splits import choose_parts
from penstock.readers.images import check_damaged, describe_left_out, find_damaged
from penstock.readers.records import ReadOptions, RecordReader
from penstock.readers.records.image_decoding import convert_channels

Batch = Mapping[str, np.ndarray]
BatchReader = readers.Reader[Batch]
Decode = Callable[[Any], object]
MakeReader = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareSample:
    """Prepare one sample: crop its image to bytes of the right channels, and shift its label.

    A class, as it travels to processes. It is a reader's `augment=` in training, and its `decode=`
    in evaluation.
    """

    crop: SamplePreprocessing
    num_channels: int
    num_classes: int
    labels_offset: int = 0

    def __call__(
        self, sample: object, random: np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        image, value = get_image_and_label(sample)
        cropped = self.crop({"image": convert_channels(to_bytes(image), self.num_channels)}, random)
        value -= self.labels_offset
        if not 0 <= value < self.num_classes:
            after = f" after --labels_offset={self.labels_offset}" if self.labels_offset else ""
            few = f"--num_classes got {self.num_classes}, expected at least {value + 1}: the data"
            low = f"the data got the label {value}{after}, expected 0 or more. Change"
            is_low = value < 0
            raise ValueError(
                f"{low} --labels_offset." if is_low else f"{few} has the label {value}{after}."
            )
        return {"image": cropped["image"], "label": np.asarray(value, np.int32)}


def get_image_and_label(sample: object) -> tuple[ArrayLike, int]:
    if isinstance(sample, Mapping) and {"image", "label"} <= set(sample):
        return sample["image"], _read_label(sample["label"])
    if isinstance(sample, tuple) and len(sample) >= 2:
        return sample[0], _read_label(sample[1])
    has = ", ".join(map(str, sample)) if isinstance(sample, Mapping) else type(sample).__name__
    raise ValueError(
        f"--dataset_name got a data set of {has}, expected one of image and label. The command "
        "trains classifiers of images. Write a program for it, as `penstock docs tutorial` shows."
    )


def _read_label(label: ArrayLike) -> int:
    array = np.asarray(label)
    if array.size != 1 or (number := int(array.item())) != float(array.item()):
        raise ValueError(
            f"the data set got the label {array.tolist()!r}, expected the number of a class, from "
            "0 on. A sample has one."
        )
    return number


def to_bytes(image: ArrayLike) -> np.ndarray:
    """Return an image `[H, W, C]` as uint8; floats are in 0..1.

    >>> to_bytes(np.full((1, 2), 0.5, np.float32)).ravel().tolist()
    [128, 128]
    """
    array = np.asarray(image)
    array = array[..., np.newaxis] if array.ndim == 2 else array
    if array.dtype == np.uint8:
        return array
    if np.issubdtype(array.dtype, np.floating) and array.min() >= 0 and array.max() <= 1:
        return np.rint(array * 255).astype(np.uint8)
    raise ValueError(
        f"the data set got images of dtype {array.dtype} from {array.min()} to {array.max()}, "
        "expected uint8, or floats in 0..1."
    )


# The parts of a folder that has none, by how many they are to be, in the order of their numbers.
_OWN_PARTS: Mapping[int, Mapping[SplitName, str]] = {
    2: {"train": "", "validation": "a tenth held out", "test": "a tenth held out"},
    3: {"train": "", "test": "a tenth held out", "validation": "another tenth"},
}

# Sets whose record files have TF-Slim's keys, and how many channels their images have.
_SLIM = {"mnist": 1, "fashion_mnist": 1, "cifar10": 3, "cifar100": 3, "flowers": 3}
_NUM_CLASSES = {**dict.fromkeys(("digits", *_SLIM), 10), "cifar100": 100, "flowers": 5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """The samples of one split, as they are stored."""

    part: str  # of the data, such as `val`
    make: MakeReader  # of a reader; takes the fields of `ReadOptions` that all readers have
    num_samples: int
    first: object
    num_classes: int | None = None  # where the data set says it
    largest_label: int | None = None  # of sets in memory
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None  # their paths in the folder, where each is a file

    @property
    def names_digest(self) -> str | None:
        """What tells other names of its images; None where they have none."""
        if self.files is None:
            return None
        names = "\0".join(self.files).encode("utf-8", "surrogateescape")
        return hashlib.sha256(names).hexdigest()[:16]

    def read(self, options: ReadOptions) -> BatchReader:
        # Not every reader takes these two.
        taken = {name: v for name, v in vars(options).items() if name not in ("name", "pad")}
        return self.make(**taken)


def open_split(flags: TrainFlags, split: SplitName) -> Split:
    part, wanted = find_part(flags, split), flags.dataset
    name, folder = wanted.dataset_name, find_root(wanted)
    if files := _list_files(wanted, split):
        make = _read_files(wanted, _find_files(folder, files))
    elif name == "image_folder":
        return _open_folder(flags, part, split)
    elif name not in DATASETS:
        make = _read_files(wanted, _list_records(wanted, part))
    else:
        # Photographs keep their sizes, for a preprocessing to crop.
        shape = (None, None, 3) if name == "flowers" else None
        make = functools.partial(
            readers.dataset, name, part, dataset_dir=wanted.dataset_dir, image_shape=shape
        )
        folder = find_folder(name, wanted.dataset_dir)
    return _describe(make, part, folder, flags)


def find_root(wanted: DatasetFlags) -> Path:
    return Path(wanted.dataset_dir or ".")


def _list_files(wanted: DatasetFlags, split: SplitName) -> tuple[str, ...]:
    text = wanted.train_files if split == "train" else wanted.eval_files
    return split_words(text) if text else ()


def _list_records(wanted: DatasetFlags, part: str) -> list[str]:
    return sorted(map(str, find_root(wanted).glob(f"{wanted.dataset_name}_{part}*.tfrecord")))


def find_part(flags: TrainFlags, split: SplitName) -> str:
    """Return the name of the part of the data that a split is.

    Two splits are one part where there is none that the other could be: what the best network is
    chosen on, and what it is tested on.
    """
    name, folder = flags.dataset.dataset_name, find_root(flags.dataset)
    if files := _list_files(flags.dataset, split):
        return ",".join(files)
    if name == "image_folder":
        is_there = {part: (folder / part).is_dir() for part in PARTS[split]}
        if not has_parts(folder):
            return _OWN_PARTS[flags.dataset.num_folder_parts][split]
        missing = (
            f"{str(folder)!r} got no folder {listed(PARTS[split])}, expected one beside 'train'. "
            "There is nothing to test on. Put images there, in one folder per class."
        )
    elif name not in DATASETS:
        is_there = {part: bool(_list_records(flags.dataset, part)) for part in PARTS[split]}
        missing = (
            f"{str(folder)!r} got no file {name}_{PARTS[split][-1]}*.tfrecord, expected one, or "
            f"--{'train' if split == 'train' else 'eval'}_files." + nearest(name, list_datasets())
        )
    else:
        existing = readers.dataset_splits(name)
        is_there = {part: part in existing for part in PARTS[split]}
        missing = f"--dataset_name={name} got no {split} split, expected one of {listed(existing)}."
    parts = [part for part, is_part in is_there.items() if is_part]
    if not parts:
        raise readers.DatasetNotFoundError(missing)
    return parts[0]


def _read_files(wanted: DatasetFlags, paths: Sequence[str]) -> MakeReader:
    name, own = wanted.dataset_name, None
    if name in DATASETS and name not in _SLIM:
        folder = find_folder(name, wanted.dataset_dir)
        own = DATASETS[name].load(readers.DatasetRequest(name=name, split="train", folder=folder))
    if not isinstance(own, readers.RecordSet):
        features = {
            "image": readers.ImageFeature((None, None, _SLIM.get(name, 3)), key="image/encoded"),
            "label": readers.FixedLenFeature((), "int32", key="image/class/label"),
        }
        return functools.partial(readers.tfrecord, paths, features)

    def make(decode: Decode | None = None, **options: Any) -> RecordReader:
        chain = [step for step in (own.parse_fn, decode) if step is not None]
        return readers.tfrecord(
            paths, own.features, decode=functools.partial(_apply, chain), **options
        )

    return make


def _apply(functions: Sequence[Decode], sample: object) -> object:
    return functools.reduce(lambda value, function: function(value), functions, sample)


def _open_folder(flags: TrainFlags, part: str, split: SplitName) -> Split:
    wanted, read = flags.dataset, flags.preprocessing
    root = find_root(wanted)
    is_parted = has_parts(root)
    path = root / part if is_parted else root
    stored = readers.ImageFolder(path, shorter_side=read.cache_image_size)
    if is_parted and split != "train":
        # A label is the number of its class.
        classes = readers.ImageFolder(root / "train").class_names
        if what := describe_other_classes(stored.class_names, classes):
            todo = "Remove it, or add it to those"
            todo = "Put its images there" if what.startswith("no") else todo
            raise ValueError(
                f"{str(path)!r} got {what}, expected the {len(classes)} classes of "
                f"{str(root / 'train')!r}. Both parts need the same folders. {todo}."
            )
    # Before a tenth is held out, which stays the same when these files are removed.
    damaged = find_damaged(stored.files) if read.skip_damaged else []
    notes = check_damaged(stored, damaged)
    if stored.left_out:
        notes += (f"{str(path)!r}: {describe_left_out(stored.left_out)}",)
    rows = np.setdiff1d(np.arange(len(stored)), damaged)
    if not is_parted:
        names = [stored.files[row].removeprefix(f"{root}{os.sep}") for row in rows]
        groups, group_notes = _find_groups(wanted.group_pattern, names)
        numbers = choose_parts(
            stored.labels[rows], groups, num_parts=wanted.num_folder_parts, seed=wanted.split_seed
        )
        parts = _OWN_PARTS[wanted.num_folder_parts]
        rows = rows[numbers == list(dict.fromkeys(parts.values())).index(parts[split])]
        # They are the same files.
        notes = (*notes, *group_notes) if split == "train" else ()
    if not len(rows):
        raise readers.DatasetNotFoundError(
            f"{str(root)!r} got too few images, or groups of them, to hold tenths of them out. Put "
            "those to test on in a folder 'test' beside 'train'."
        )
    is_whole = is_parted and not damaged
    make = functools.partial(readers.indexed, stored if is_whole else stored.take(rows))
    return dataclasses.replace(
        _describe(make, part, root, flags),
        num_classes=len(stored.class_names),
        class_names=stored.class_names,
        notes=notes,
        # In its own folder, which may be moved.
        files=tuple(stored.files[row].removeprefix(f"{path}{os.sep}") for row in rows),
    )


def _find_groups(pattern: str | None, names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the number of each image's group, `[n]`, and a sentence about the groups."""
    if pattern is None:
        return np.arange(len(names)), ()
    matches = [re.search(pattern, name) for name in names]
    # One without a group is a group by itself, named by what no path is.
    keys = [
        f"/{n}" if m is None else next((g for g in m.groups() if g is not None), m[0])
        for n, m in enumerate(matches)
    ]
    groups = np.unique(np.array(keys), return_inverse=True)[1]
    without = matches.count(None)
    if without == len(names):
        raise ValueError(
            f"--group_pattern got {pattern!r}, expected a pattern that is found in "
            f"paths such as {names[0]!r}. Images of a group are in one part."
        )
    note = f"--group_pattern: {len(set(keys)) - without:,} groups of images, each in one part"
    return groups, (note + (f"; {without:,} images are in none" if without else ""),)


def describe_other_classes(names: Sequence[str], expected: Sequence[str]) -> str | None:
    """Return how classes differ from those expected, whose numbers are labels; None where not."""
    missing = [name for name in expected if name not in names]
    more = [name for name in names if name not in expected]
    if missing:
        return f"no class {listed(missing[:3])}"
    if more:
        return f"the class {listed(more[:3])}"
    return None if tuple(names) == tuple(expected) else "its classes in another order"


def _describe(make: MakeReader, part: str, folder: Path, flags: TrainFlags) -> Split:
    """Return a split with what its first sample, its arrays and a `labels.txt` say of it."""
    # No worker is started for one sample.
    on_error = flags.preprocessing.on_error
    reader = make(batch_size=None, on_error=on_error, num_workers=0, look_ahead=0)
    name, labels = flags.dataset.dataset_name, None
    # There need not be one, and a file of that name may be another program's.
    with contextlib.suppress(OSError, ValueError):
        names = read_labels(folder)
        labels = tuple([names.get(i, str(i)) for i in range(max(names) + 1)]) if names else None
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


def _find_files(folder: Path, names: Sequence[str]) -> list[str]:
    paths: list[str] = []
    for name in names:
        files = glob.glob(str(Path(glob.escape(str(folder))) / name))
        if not files:
            what = "no file of that name" if folder.is_dir() else "no folder of that name"
            raise FileNotFoundError(
                f"{str(folder / name)!r} got {what}, expected a TFRecord file. "
                f"--dataset_dir and --train_files say where it is.{nearest_path(folder / name)}"
            )
        paths += files
    return sorted(paths)

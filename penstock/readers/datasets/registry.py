"""The registry of named data sets, how their files are found, and `dataset`, which reads them."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np

from penstock._errors import check_known, listed
from penstock.readers import _tree
from penstock.readers._archives import Limits
from penstock.readers._contract import ReaderBase
from penstock.readers._errors import DatasetNotFoundError
from penstock.readers._read_options import Decode, ReadKeywords, ReadOptions
from penstock.readers.in_memory import arrays
from penstock.readers.random_access import IndexedReader, Source
from penstock.readers.sharding import BatchSize, read_whole, resolve_batch_size

if TYPE_CHECKING:
    from penstock.readers.records.features import Feature


# A loader, or a `parse_fn`: it is returned as it was.
Function = TypeVar("Function", bound=Callable[..., Any])
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DatasetRequest:
    """The argument of a data set's loader: which split to load, and in which form.

    Args:
      name: the data set.
      split: one of the splits it was registered with.
      folder: where its files are expected.
      batch_size: the global batch size, `None` for single samples.
      image_shape: `[H, W, C]` of the images, `None` for the set's default.
      max_length: the length that text is padded or truncated to, `None` for the set's default.
    """

    name: str
    split: str
    folder: Path
    batch_size: int | None = None
    image_shape: tuple[int | None, ...] | None = None
    max_length: int | None = None


@dataclass(frozen=True, kw_only=True)
class RecordSet:
    """A data set in TFRecord files, as a loader returns it.

    Args:
      paths: the files, in order.
      features: maps each entry of the sample to its feature spec. Without it `parse_fn` gets each
        record's bytes.
      parse_fn: a function of one sample, or of one record's bytes without `features`.
    """

    paths: Sequence[str | Path]
    features: Mapping[str, Feature] | None = None
    parse_fn: Decode | None = None


Loaded = Mapping[str, np.ndarray] | RecordSet | Source[object]
Loader = Callable[[DatasetRequest], Loaded]


@dataclass(frozen=True, kw_only=True)
class RegisteredDataset:
    """A registered data set: its splits, and what loads one."""

    splits: tuple[str, ...]
    load: Loader


DATASETS: dict[str, RegisteredDataset] = {}


def register_dataset(
    name: str,
    *,
    splits: Sequence[str] = ("train", "test"),
    files: Mapping[str, str] | None = None,
) -> Callable[[Function], Function]:
    """Register a data set under a name: decorate its loader, or its `parse_fn`.

    With `files` the decorated function is FastNN's `parse_fn`: it takes the bytes of one record
    of these TFRecord files and returns a sample. Without `files` it is a loader: it takes a
    `DatasetRequest` and returns a dict of arrays `[N, ...]`, a random-access source (see
    `readers.indexed`), or a `RecordSet`.

    Args:
      name: the name for `readers.dataset`; registering it again replaces the data set.
      splits: the set's splits.
      files: split -> glob pattern of its TFRecord files, relative to the data set's folder.

    Source: FastNN's `dataset` interface.

    >>> import numpy as np
    >>> from penstock.readers import dataset
    >>> @register_dataset("parity", splits=["train"])
    ... def load_parity(request):
    ...     return {"x": np.arange(6), "label": np.arange(6) % 2}
    >>> next(dataset("parity", batch_size=3)())["label"].tolist()
    [0, 1, 0]
    """

    def register(function: Function) -> Function:
        if files is None:
            DATASETS[name] = RegisteredDataset(splits=tuple(splits), load=function)
        else:
            patterns = dict(files)

            def load(request: DatasetRequest) -> RecordSet:
                paths = sorted(glob.glob(str(request.folder / patterns[request.split])))
                if not paths:
                    raise missing(request, [patterns[request.split]], "They are your own files")
                return RecordSet(paths=paths, parse_fn=function)

            DATASETS[name] = RegisteredDataset(splits=tuple(files), load=load)
        return function

    return register


def dataset_names() -> list[str]:
    """Return the names of the registered data sets, sorted.

    >>> dataset_names()[:3]
    ['breast_cancer', 'cifar10', 'cifar100']
    """
    return sorted(DATASETS)


def dataset_splits(name: str) -> tuple[str, ...]:
    """Return the splits of a data set.

    Raises:
      UnknownNameError: no such data set.

    >>> dataset_splits("digits")
    ('train', 'test')
    """
    check_known("dataset(name)", name, dataset_names(), "Add yours with readers.register_dataset.")
    return DATASETS[name].splits


def find_folder(name: str, dataset_dir: str | os.PathLike[str] | None) -> Path:
    """Return where the files of a data set are looked for."""
    if dataset_dir is not None:
        return Path(dataset_dir)
    if root := os.environ.get("PENSTOCK_DATA"):
        return Path(root) / name
    # Imported here, as most runs name their folder.
    from penstock._files import cache_folder

    return cache_folder() / "datasets" / name


def missing(request: DatasetRequest, files: Sequence[str], how: str) -> DatasetNotFoundError:
    """Return the error that says which files are expected where, and how to get them."""
    folder = repr(str(request.folder))
    got = f"a folder {folder} without them" if request.folder.is_dir() else f"no folder {folder}"
    return DatasetNotFoundError(
        f"dataset({request.name!r}, {request.split!r}) got {got}, expected one of {listed(files)} "
        f"there. The data set is not part of penstock, and nothing is downloaded unasked. {how}. "
        "Put the files there, or pass dataset_dir= or set PENSTOCK_DATA to where they are."
    )


def text_limits(file_mib: int, total_mib: int, num_entries: int = 10_000) -> Limits:
    """Return the limits of an archive of text."""
    return Limits(file_bytes=file_mib * MIB, total_bytes=total_mib * MIB, num_entries=num_entries)


def find(request: DatasetRequest, names: Sequence[str]) -> Path | None:
    """Return the first of `names` (relative to the folder) that is there."""
    return next((path for name in names if (path := request.folder / name).exists()), None)


def find_members(request: DatasetRequest, archives: Sequence[str], how: str) -> Path:
    """Return the archive, or the folder it was unpacked to."""
    path = find(request, archives)
    if path is None:
        raise missing(request, archives, how)
    return path


def dataset(
    name: str,
    split: str = "train",
    batch_size: BatchSize | None = None,
    *,
    dataset_dir: str | os.PathLike[str] | None = None,
    image_shape: Sequence[int | None] | None = None,
    max_length: int | None = None,
    **options: Unpack[ReadKeywords],
) -> ReaderBase[Any]:
    """Read a data set by name; `help("penstock.readers.datasets")` lists them.

    Args:
      name: the data set.
      split: `"train"` or `"test"`; `readers.dataset_splits(name)` lists them.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      dataset_dir: the folder of its files.
      image_shape: `[H, W, C]`: the size of the images that `mock` makes or that `flowers` are
        resized to. For `flowers`, `[None, None, 3]` keeps each image's own size.
      max_length: the length that text is padded or truncated to.
      options: keywords of `records.ReadOptions`, such as `shuffle=True`.

    Returns:
      A reader of batches, or of single samples without a batch size.

    Raises:
      UnknownNameError: no such data set.
      ValueError: no such split, or an image shape that the set cannot have.
      DatasetNotFoundError: the files are missing; says where they belong and how to get them.

    >>> reader = dataset("digits", "test", 64)
    >>> next(reader())["image"].shape, len(reader)
    ((64, 8, 8, 1), 6)
    """
    read_options = ReadOptions.from_keywords(f"dataset({name!r})", batch_size, options)
    splits = dataset_splits(name)
    check_known(f"dataset({name!r}, split)", split, splits, "It has no other part.", ValueError)
    request = DatasetRequest(
        name=name,
        split=split,
        folder=find_folder(name, dataset_dir),
        batch_size=None if batch_size is None else resolve_batch_size(batch_size),
        image_shape=None if image_shape is None else tuple(image_shape),
        max_length=max_length,
    )
    with read_whole():
        loaded = DATASETS[name].load(request)
    return _build_reader(loaded, read_options)


def _build_reader(loaded: Loaded, options: ReadOptions) -> ReaderBase[Any]:
    if isinstance(loaded, RecordSet):
        return _build_record_reader(loaded, options)
    if not isinstance(loaded, Mapping):
        return IndexedReader(loaded, options)
    reader = arrays(
        dict(loaded),
        options.batch_size,
        shuffle=options.shuffle,
        seed=options.seed,
        drop_remainder=options.drop_remainder,
        transform=options.transform,
        shard=options.shard,
    )
    is_by_sample = options.decode or options.augment or options.pad
    return IndexedReader(_Columns(reader.data), options) if is_by_sample else reader


def _build_record_reader(loaded: RecordSet, options: ReadOptions) -> ReaderBase[Any]:
    # Imported here: only who reads records needs protobuf and the checksum library.
    from penstock.readers.records import RecordFormat, RecordReader
    from penstock.readers.tfrecord_files import build_decoder, find_files

    if loaded.parse_fn is not None:
        parse = loaded.parse_fn
        decode = parse if options.decode is None else partial(_decode, parse, options.decode)
        options = replace(options, decode=decode)
    files, decoder = find_files(loaded.paths), build_decoder(loaded.features)
    return RecordReader(files, RecordFormat(), decoder, options)


def _decode(parse: Decode, decode: Decode, sample: object) -> object:
    return decode(parse(sample))


class _Columns:
    """Arrays of one length, `[N, ...]`, as a source of samples."""

    def __init__(self, data: object) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(next(leaf for _, leaf in _tree.leaves_with_path(self.data, "")))

    def __getitem__(self, index: int) -> _tree.ArrayTree:
        return _tree.tree_map(lambda leaf: leaf[index], self.data)

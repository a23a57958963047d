"""The registry of named data sets, and how their files are found."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock._errors import UnknownNameError, listed, nearest
from penstock.readers._archives import Limits
from penstock.readers._errors import DatasetNotFoundError
from penstock.readers._read_options import Decode
from penstock.readers.random_access import Source

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
    if name not in DATASETS:
        raise UnknownNameError(
            f"dataset(name) got {name!r}, expected one of {listed(dataset_names())}. Data sets are "
            f"found by name.{nearest(name, DATASETS)} Add your own with readers.register_dataset."
        )
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
    found = find(request, archives)
    if found is None:
        raise missing(request, archives, how)
    return found

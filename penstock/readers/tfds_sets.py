"""TFDS by name, through its random-access data sources; no TensorFlow is imported."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np

from penstock._errors import check_installed, check_known
from penstock.readers._errors import DatasetNotFoundError
from penstock.readers._read_options import ReadKeywords, ReadOptions
from penstock.readers.random_access import IndexedReader, Source
from penstock.readers.sharding import BatchSize


class KeptFeatures:
    """A TFDS data source with some of its features kept, in the order they are named.

    Args:
      dtypes: of features that TFDS gives as Python's numbers, such as labels.
    """

    def __init__(
        self,
        source: Source[Mapping[str, object]],
        features: Sequence[str] | None,
        name: str,
        dtypes: Mapping[str, type[np.generic]] = MappingProxyType({}),
    ) -> None:
        self.source = source
        self.features = None if features is None else tuple(features)
        self.name, self.dtypes = name, dict(dtypes)
        # A record is decoded only where there are names to check.
        names = list(source[0]) if self.features else []
        for feature in self.features or ():
            why = "Leave features out to keep them all."
            check_known(f"tfds({name!r}, features=)", feature, names, why, ValueError)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return one record, decoded by TFDS to numpy arrays."""
        record = self.source[index]
        kept = record if self.features is None else {key: record[key] for key in self.features}
        return {**kept, **{key: dtype(record[key]) for key, dtype in self.dtypes.items()}}

    def origin(self, index: int) -> str:
        """Return the data set and the record's number."""
        return f"TFDS {self.name}, record {index}"


def tfds(
    name: str,
    split: str,
    batch_size: BatchSize | None = None,
    *,
    features: Sequence[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    **options: Unpack[ReadKeywords],
) -> IndexedReader:
    """Read a TensorFlow Datasets set by name, without TensorFlow, through `tfds.data_source`.

    Images are `uint8`. The set must have been prepared as ArrayRecord files.

    Args:
      name: the set, with its configuration and version in TFDS's notation: `"mnist:3.0.1"`.
      split: in TFDS's notation, e.g. `"train"` or `"train[:90%]"`.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      features: names of the features to keep; all by default.
      data_dir: the folder of prepared sets, `~/tensorflow_datasets` by default.
      download: download and prepare the set if it is missing.
      options: keywords of `records.ReadOptions`, such as `shuffle=True`. `cache_records` keeps the
        records decoded, as TFDS returns them.

    Returns:
      A reader of dicts of the set's features, leaves `[b, ...]`.

    Raises:
      ModuleNotFoundError: tensorflow-datasets is not installed.
      DatasetNotFoundError: TFDS has no such set or split, or not as ArrayRecord files.
      ValueError: the set has no such feature, or an option is out of range.

    Source: https://www.tensorflow.org/datasets/tfless_tfds
    """
    read_options = ReadOptions.from_keywords("tfds", batch_size, options)
    opened = open_set(name, split, data_dir, download=download)
    return IndexedReader(KeptFeatures(opened, features, f"{name}[{split}]"), read_options)


def open_set(
    name: str, split: str, data_dir: str | os.PathLike[str] | None, *, download: bool
) -> Source[Mapping[str, object]]:
    """Return TFDS's data source of a set."""
    check_installed("tensorflow_datasets", "tfds", f"tfds({name!r})")
    package = importlib.import_module("tensorflow_datasets")
    data_dir = None if data_dir is None else os.fspath(data_dir)
    try:
        return package.data_source(name, split=split, data_dir=data_dir, download=download)
    # What TFDS raises for it. A set that is not prepared is a KeyError of its split.
    except (KeyError, AssertionError, FileNotFoundError, ValueError, NotImplementedError) as error:
        cause = str(error.args[0] if error.args else error).strip().partition("\n")[0]
        place = "~/tensorflow_datasets" if data_dir is None else repr(data_dir)
        raise DatasetNotFoundError(
            f"tfds({name!r}, {split!r}) got none in {place}, expected a set and a split that TFDS "
            f"has prepared as ArrayRecord files. TFDS says: {cause.rstrip('.')}. Check both names, "
            "pass data_dir=, or download=True to prepare the set."
        ) from error

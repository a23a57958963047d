"""`dataset`, the one function that reads named data sets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from penstock._errors import listed, nearest
from penstock.readers import _tree
from penstock.readers._contract import ReaderBase
from penstock.readers._read_options import Decode, ReadKeywords, ReadOptions
from penstock.readers.datasets.registry import (
    DATASETS,
    DatasetRequest,
    Loaded,
    RecordSet,
    dataset_splits,
    find_folder,
)
from penstock.readers.in_memory import arrays
from penstock.readers.random_access import IndexedReader
from penstock.readers.sharding import BatchSize, read_whole, resolve_batch_size


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
    loaded = _load(name, split, dataset_dir, image_shape, max_length, read_options)
    return _build_reader(loaded, read_options)


def _load(
    name: str,
    split: str,
    dataset_dir: str | os.PathLike[str] | None,
    image_shape: Sequence[int | None] | None,
    max_length: int | None,
    options: ReadOptions,
) -> Loaded:
    splits = dataset_splits(name)
    if split not in splits:
        raise ValueError(
            f"dataset({name!r}, split) got {split!r}, expected one of {listed(splits)}. The set "
            f"has no other part.{nearest(split, splits)} Use one of them."
        )
    size = options.batch_size
    request = DatasetRequest(
        name=name,
        split=split,
        folder=find_folder(name, dataset_dir),
        batch_size=None if size is None else resolve_batch_size(size),
        image_shape=None if image_shape is None else tuple(image_shape),
        max_length=max_length,
    )
    with read_whole():
        return DATASETS[name].load(request)


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

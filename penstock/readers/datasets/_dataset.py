"""`dataset`, the one function that reads named data sets."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._errors import listed, nearest
from penstock.readers._contract import ReaderBase
from penstock.readers._errors import message
from penstock.readers._pool import num_usable_cores
from penstock.readers.datasets._registry import (
    DATASETS,
    DatasetRequest,
    RecordSet,
    dataset_splits,
    folder_of,
)
from penstock.readers.decorators import map_readers
from penstock.readers.in_memory import arrays
from penstock.readers.random_access import indexed
from penstock.readers.sharding import BatchSize, Shard, resolve_batch_size


def dataset(
    name: str,
    split: str = "train",
    batch_size: BatchSize | None = None,
    *,
    dataset_dir: str | os.PathLike[str] | None = None,
    shuffle: bool = False,
    seed: int = 0,
    drop_remainder: bool = False,
    transform: Callable[[Any], Any] | None = None,
    image_shape: Sequence[int] | None = None,
    max_length: int | None = None,
    num_workers: int | None = None,
    shard: Shard | None = None,
) -> ReaderBase:
    """Read a data set by its name.

    `penstock.readers.datasets` lists them. Files are looked for in `dataset_dir`, else in
    `$PENSTOCK_DATA/<name>`, else in `datasets/<name>` in penstock's cache folder; then TFDS is
    asked, if it is installed and the set prepared. Nothing is downloaded.

    Args:
      name: the data set.
      split: `"train"` or `"test"`, what it has.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      dataset_dir: the folder of its files.
      shuffle: draw a new order each epoch.
      seed: decides the orders.
      drop_remainder: leave out a last batch that is not full.
      transform: a function of a batch (of a sample, without a batch size).
      image_shape: `[H, W, C]`: what mock makes, and flowers resizes to.
      max_length: what text is padded or cut to.
      num_workers: threads that decode, where anything is decoded; a core each without it.
      shard: the part this process reads.

    Returns:
      A reader of dicts; of sets in memory, `reader.data` is the whole split.

    Raises:
      UnknownNameError: no such data set.
      ValueError: no such split, or an image shape the set cannot have.
      DatasetNotFoundError: its files are not there; says where they belong and how to get them.

    >>> reader = dataset("digits", "test", 64)
    >>> batch = next(reader())
    >>> batch["image"].shape, batch["label"].dtype.name, len(reader)
    ((64, 8, 8, 1), 'int32', 6)
    """
    _check_split(name, split)
    request = DatasetRequest(
        name=name,
        split=split,
        folder=folder_of(name, dataset_dir),
        batch_size=None if batch_size is None else resolve_batch_size(batch_size, shard),
        image_shape=None if image_shape is None else tuple(image_shape),
        max_length=max_length,
    )
    options = _Options(batch_size, shuffle, seed, drop_remainder, num_workers, shard)
    reader = _reader(name, DATASETS[name].load(request), options)
    return reader if transform is None else map_readers(transform, reader)


@dataclass(frozen=True)
class _Options:
    batch_size: BatchSize | None
    shuffle: bool
    seed: int
    drop_remainder: bool
    num_workers: int | None
    shard: Shard | None


def _check_split(name: str, split: str) -> None:
    splits = dataset_splits(name)
    if split not in splits:
        raise ValueError(
            message(
                f"dataset({name!r}, split)",
                repr(split),
                f"one of {listed(splits)}",
                f"The set has no other part.{nearest(split, splits)}",
                "Use one of them",
            )
        )


def _reader(name: str, loaded: Any, options: _Options) -> ReaderBase:
    """Return the reader that fits what a loader returned."""
    if isinstance(loaded, RecordSet):
        # Imported here: only who reads records needs protobuf and the checksum library.
        from penstock.readers.tfrecord_files import tfrecord

        return tfrecord(
            [str(path) for path in loaded.paths],
            loaded.features,
            decode=loaded.parse_fn,
            batch_size=options.batch_size,
            shuffle=options.shuffle,
            seed=options.seed,
            drop_remainder=options.drop_remainder,
            num_workers=options.num_workers,
            shard=options.shard,
        )
    if isinstance(loaded, Mapping):
        return arrays(
            dict(loaded),
            options.batch_size,
            shuffle=options.shuffle,
            seed=options.seed,
            drop_remainder=options.drop_remainder,
            shard=options.shard,
        )
    return indexed(
        loaded,
        options.batch_size,
        shuffle=options.shuffle,
        seed=options.seed,
        drop_remainder=options.drop_remainder,
        num_workers=num_usable_cores() if options.num_workers is None else options.num_workers,
        shard=options.shard,
        name=f"dataset({name!r})",
    )

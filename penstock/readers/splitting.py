"""Parts of a reader: for training, validation and test, and folds."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from penstock._errors import check_int, check_known, check_type
from penstock.readers._errors import ShardError
from penstock.readers._random_access_reader import RandomAccessReader
from penstock.readers.datasets.splits import spread_classes
from penstock.readers.images import ImageFolder
from penstock.readers.in_memory import ArrayReader
from penstock.readers.random_access import IndexedReader

AnyReader = TypeVar("AnyReader", bound="ArrayReader | RandomAccessReader")


def split(
    reader: AnyReader,
    fractions: Sequence[float],
    *,
    seed: int = 0,
    by: str | Sequence[object] | np.ndarray | None = None,
) -> list[AnyReader]:
    """Split a reader into parts of other samples each, drawn at random.

    The parts depend on the number of samples, the seed and `by` alone. They read as the reader
    does: batch size, shuffling, augmentation. For a test part without augmentation, split a second
    reader of the same data that has none.

    Args:
      reader: of `arrays`, `indexed`, `image_folder`, `tfds`, record files, or a part of one.
      fractions: the share of each part, such as `[0.8, 0.1, 0.1]`.
      seed: of the draw.
      by: what each part has in the same shares as the whole, such as `"label"`: a column of arrays
        or of a source's records, which are read for it, or values `[N]` of all samples.

    Returns:
      A reader for each fraction.

    Raises:
      TypeError: a reader that does not reach its samples by number.
      ValueError: the fractions do not sum to 1, a part would be empty, or `by` is no column.
      ShardError: whole files go to each process.

    >>> import numpy as np
    >>> from penstock import readers
    >>> reader = readers.arrays({"x": np.arange(10), "label": np.arange(10) % 2}, 4)
    >>> train, test = split(reader, [0.6, 0.4], by="label")
    >>> [sorted(batch["x"].tolist()) for batch in test]
    [[0, 1, 8, 9]]
    """
    shares = np.asarray(fractions, np.float64)
    is_whole = shares.ndim == 1 and np.all(shares > 0) and abs(shares.sum() - 1) <= 1e-6
    if not is_whole:
        raise ValueError(
            f"split got the fractions {fractions!r}, expected numbers above 0 whose sum is 1. "
            "Every sample is in one part. Pass e.g. [0.8, 0.1, 0.1]."
        )
    parts = _deal(reader, shares.cumsum(), seed, by, "split")
    return [_take(reader, np.sort(rows)) for rows in parts]


def folds(
    reader: AnyReader,
    k: int,
    *,
    seed: int = 0,
    by: str | Sequence[object] | np.ndarray | None = None,
) -> list[tuple[AnyReader, AnyReader]]:
    """Return the pairs of a cross-validation: `k` times what to train on and what to test on.

    Every sample is in one of the test parts.

    Args:
      reader: as for `split`, and the other arguments.
      k: the number of folds, 2 or more.

    Raises:
      ValueError: there are fewer samples than folds; or as `split` does, and its other errors.

    >>> import numpy as np
    >>> from penstock import readers
    >>> reader = readers.arrays({"x": np.arange(6)}, 6)
    >>> [len(next(iter(test))["x"]) for train, test in folds(reader, 3)]
    [2, 2, 2]
    """
    check_int("folds(k)", k, 2)
    parts = _deal(reader, np.arange(1, k + 1) / k, seed, by, "folds")
    pairs = [(np.concatenate(parts[:n] + parts[n + 1 :]), part) for n, part in enumerate(parts)]
    return [(_take(reader, np.sort(a)), _take(reader, np.sort(b))) for a, b in pairs]


def _deal(
    reader: ArrayReader[Any] | RandomAccessReader,
    ends: np.ndarray,
    seed: int,
    by: str | Sequence[object] | np.ndarray | None,
    owner: str,
) -> list[np.ndarray]:
    expected = "a reader of arrays, indexed, image_folder or record files"
    remedy = "Split first, and put decorators around the parts."
    check_type(owner, reader, ArrayReader | RandomAccessReader, f"{expected}. {remedy}")
    check_int("seed", seed, 0, "It seeds a numpy generator.")
    order = reader.order
    why = "A part has records of all files. Leave the rule out."
    check_known(f"{owner} of a reader got rule=", order.shard.rule, ["records"], why, ShardError)
    number = order.num_records
    rows = np.random.Generator(np.random.PCG64(seed)).permutation(number)
    if by is not None:
        rows = spread_classes(_find_values(reader, by, owner), rows)
    bounds = np.rint(ends * number).astype(int)
    parts = np.split(rows, bounds[:-1])
    if not all(map(len, parts)):
        num_empty = sum(not len(part) for part in parts)
        raise ValueError(
            f"{owner} got {number} samples for {len(parts)} parts, {num_empty} of them empty, "
            "expected at least one in each. Take larger or fewer parts."
        )
    # Of a part they are records of the whole.
    return parts if order.chosen is None else [order.chosen[part] for part in parts]


def _find_values(
    reader: ArrayReader[object] | RandomAccessReader,
    by: str | Sequence[object] | np.ndarray,
    owner: str,
) -> np.ndarray:
    order = reader.order
    if not isinstance(by, str):
        values = np.asarray(by)
        values = values.reshape(*values.shape[:1], -1)
    else:
        rows = np.arange(order.num_records) if order.chosen is None else order.chosen
        values = _read_column(reader, by, rows, owner)
    if values.shape != (order.num_records, 1):
        raise ValueError(
            f"{owner} got by= of shape {list(np.shape(values))}, expected one value for each of "
            f"{order.num_records} samples. Pass a column of labels."
        )
    return values[:, 0]


def _read_column(
    reader: ArrayReader[object] | RandomAccessReader, name: str, rows: np.ndarray, owner: str
) -> np.ndarray:
    if isinstance(reader, ArrayReader):
        columns = reader.data if isinstance(reader.data, Mapping) else {}
        if name in columns:
            return np.asarray(columns[name])[rows].reshape(len(rows), -1)
    elif isinstance(reader, IndexedReader):
        source = reader.source
        # It knows its labels without decoding an image.
        if name == "label" and isinstance(source, ImageFolder):
            return source.labels[rows].reshape(len(rows), -1)
        first = source[int(rows[0])]
        columns = first if isinstance(first, Mapping) else {}
    else:
        columns = {}
    check_known(f"{owner} got by=", name, columns, "Or pass a value for each sample.", ValueError)
    samples: list[Mapping[str, object]] = [source[int(row)] for row in rows]  # pyright: ignore
    return np.asarray([sample[name] for sample in samples]).reshape(len(rows), -1)


def _take(reader: AnyReader, rows: np.ndarray) -> AnyReader:
    """Return a reader of some records, rising."""
    part = copy.copy(reader)
    part.next_epoch = 0
    part.reorder(dataclasses.replace(reader.order, num_records=len(rows), chosen=rows))
    return part

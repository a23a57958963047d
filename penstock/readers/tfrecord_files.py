"""`readers.tfrecord`: batches from TFRecord files of `tf.Example`s, without TensorFlow."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from penstock.readers._batching import Padding
from penstock.readers._random_access_reader import Decoder
from penstock.readers._read_options import ReadKeywords, ReadOptions
from penstock.readers.records.cache import Compression
from penstock.readers.records.features import (
    Feature,
    Sample,
    SequenceFeature,
    VarLenFeature,
    parse_example,
)
from penstock.readers.records.files import RecordFormat, RecordReader
from penstock.readers.sharding import BatchSize

Paths = str | Path | Sequence[str | Path]


def build_decoder(features: Mapping[str, Feature] | None) -> Decoder:
    """Return what parses `tf.Example` payloads by a feature spec; without one, they stay bytes."""
    features = features and dict(features)
    varying = {
        name: feature
        for name, feature in (features or {}).items()
        if isinstance(feature, (VarLenFeature, SequenceFeature))
    }
    if twice := [f"{name}_length" for name in varying if f"{name}_length" in (features or {})]:
        raise ValueError(
            f"features got {twice[0]!r}, expected another name for it. The number of values of "
            f"{twice[0].removesuffix('_length')!r} takes that place in a sample. Declare it under "
            "another name, with key= as the record calls it."
        )
    # Features with a `max_length` are padded when they are extracted.
    padding = {
        name: Padding(value=feature.pad_value)
        for name, feature in varying.items()
        if feature.max_length is None
    }
    return Decoder(kind="tfrecord", decode=partial(_parse, features), padding=padding)


def _parse(features: Mapping[str, Feature] | None, payload: bytes, _: object) -> Sample | bytes:
    return payload if features is None else parse_example(payload, features)


def tfrecord(
    paths: Paths,
    features: Mapping[str, Feature] | None,
    *,
    batch_size: BatchSize | None = None,
    compression: Compression = "auto",
    cache_dir: str | Path | None = None,
    max_plain_bytes: int = 64 << 30,
    **options: Unpack[ReadKeywords],
) -> RecordReader:
    """Read batches from TFRecord files, in any order, from any position.

    Files are indexed on first use (headers only); the index is kept beside each file of 1 MiB or
    more. So every record is one read away, and shuffling covers all records, not a window.
    Checksums are verified. A GZIP or ZLIB file is decompressed once, to the cache folder.

    Args:
      paths: a file, a glob pattern (matches are sorted), or a list of files in the order given.
      features: maps each entry of the sample to a `FixedLenFeature`, `VarLenFeature` or
        `ImageFeature`, or to a `SequenceFeature` for a feature list of a `tf.SequenceExample`;
        `None` yields each record's bytes.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      compression: `"auto"` detects it for each file; `""`, `"GZIP"`, `"ZLIB"` are TensorFlow's.
      cache_dir: a folder for indexes and decompressed copies. By default indexes lie beside the
        files, and copies in `$PENSTOCK_CACHE` (`~/.cache/penstock`).
      max_plain_bytes: an upper bound on the size of one decompressed file.
      options: keywords of `records.ReadOptions`, such as `shuffle=True`.

    Returns:
      A reader of dict batches, entries `[b, ...]`. Its iterators have `num_skipped`.

    Raises:
      FileNotFoundError: no file matches, or a file is missing.
      ValueError: an option out of range.
      RecordError: on first use, a file is damaged or in another format; has its path and byte
        offset.

    >>> import tempfile
    >>> from penstock.readers.records import FixedLenFeature, RecordWriter, build_example
    >>> folder = tempfile.TemporaryDirectory()
    >>> with RecordWriter(f"{folder.name}/digits.tfrecord") as writer:
    ...     for label in range(5):
    ...         writer.write(build_example({"label": label, "pixels": [0.5] * 4}))
    >>> spec = {"pixels": FixedLenFeature((2, 2), "float32"), "label": FixedLenFeature((), "int32")}
    >>> reader = tfrecord(f"{folder.name}/*.tfrecord", spec, batch_size=2)
    >>> [(batch["label"].tolist(), batch["pixels"].shape) for batch in reader]
    [([0, 1], (2, 2, 2)), ([2, 3], (2, 2, 2)), ([4], (1, 2, 2))]
    >>> folder.cleanup()
    """
    read_options = ReadOptions.from_keywords("tfrecord", batch_size, options)
    files, decoder = find_files(paths), build_decoder(features)
    form = RecordFormat(
        compression=compression, cache_dir=cache_dir, max_plain_bytes=max_plain_bytes
    )
    return RecordReader(files, form, decoder, read_options)


def find_files(paths: Paths) -> list[str]:
    """Return the files that `paths` names: a glob's matches sorted, a list in its order."""
    patterns = [paths] if isinstance(paths, (str, Path)) else paths
    files: list[str] = []
    # An empty list is refused as an empty name is.
    for pattern in list(map(str, patterns)) or [""]:
        # Asked before it is taken for a pattern: a file may be called "[1].tfrecord".
        is_file = os.path.isfile(pattern)
        # A pattern may match folders too.
        matches = [pattern] if is_file else sorted(filter(os.path.isfile, glob.glob(pattern)))
        if not matches:
            raise FileNotFoundError(
                f"paths got '{pattern}', which matches no file, expected a file, a glob pattern or "
                "a list of files. A reader needs at least one file. Check the path; a folder needs "
                "a pattern such as 'folder/*.tfrecord'."
            )
        files += matches
    return files

"""TFRecord to OFRecord and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.readers.convert.slim import are_there
from penstock.readers.ofrecord_files import part_name
from penstock.readers.records.blobs import build_ofrecord
from penstock.readers.records.errors import RecordError
from penstock.readers.records.features import build_example
from penstock.readers.records.files import RecordFiles, RecordFormat
from penstock.readers.records.framing import OFRECORD, TFRECORD
from penstock.readers.records.messages import Example, OFRecord, parse_features
from penstock.readers.records.values import list_values
from penstock.readers.records.writers import RecordWriter

# What OneFlow's ImageNet records call TF-Slim's features.
SLIM_TO_ONEFLOW = {
    "image/encoded": "encoded",
    "image/format": "format",
    "image/class/label": "class/label",
    "image/height": "height",
    "image/width": "width",
}


def tfrecord_to_ofrecord(
    paths: Sequence[str | Path],
    folder: str | Path,
    *,
    num_parts: int,
    part_name_suffix_length: int = 5,
    rename: Mapping[str, str] | None = None,
    force: bool = False,
) -> list[Path]:
    """Copy TFRecord files of `tf.Example`s to a folder of OFRecord parts, in order.

    Integers become int32 where a record's values fit, else int64; floats stay float. Parts are
    contiguous and balanced.

    Args:
      paths: the TFRecord files.
      folder: where the parts go.
      num_parts: number of parts.
      part_name_suffix_length: digits in the names, -1 for `part-0`.
      rename: feature name in the example -> in the OFRecord, e.g. `SLIM_TO_ONEFLOW`; others keep
        theirs.
      force: make the parts again that are there already.

    Returns:
      The parts.

    Raises:
      RecordError: a record is damaged or no `tf.Example`.
      ValueError: no part to write to.
    """
    names = [part_name(i, suffix_length=part_name_suffix_length) for i in range(num_parts)]
    targets = [Path(folder) / name for name in names]
    if targets and not force and are_there(targets):
        return targets
    source = RecordFiles(paths, RecordFormat(framing=TFRECORD))

    def convert(payload: bytes) -> bytes:
        return build_ofrecord(_renamed(payload, Example, rename))

    return _copy(source, targets, convert, framing=OFRECORD)


def ofrecord_to_tfrecord(
    parts: Sequence[str | Path],
    paths: Sequence[str | Path],
    *,
    rename: Mapping[str, str] | None = None,
    force: bool = False,
) -> list[Path]:
    """Copy OFRecord parts to TFRecord files of `tf.Example`s, in order.

    int32 becomes int64, double becomes float (`tf.Example` has no others, so digits beyond
    float32 are lost).

    Args:
      parts: the OFRecord files, e.g. of `find_parts`.
      paths: the files to make, filled one after another with balanced numbers of records.
      rename: feature name in the OFRecord -> in the example; others keep theirs.
      force: make the files again that are there already.

    Returns:
      The files.

    Raises:
      RecordError: a record is damaged or no OFRecord.
      ValueError: no file to write to.
    """
    targets = [Path(path) for path in paths]
    if targets and not force and are_there(targets):
        return targets
    source = RecordFiles(parts, RecordFormat(framing=OFRECORD, compression=""))

    def convert(payload: bytes) -> bytes:
        return build_example(_renamed(payload, OFRecord, rename))

    return _copy(source, targets, convert, framing=TFRECORD)


def _copy(
    source: RecordFiles, targets: list[Path], convert: Callable[[bytes], bytes], *, framing: Any
) -> list[Path]:
    if not targets:
        raise ValueError(
            "targets got none, expected at least one. Records need a file. Pass num_parts >= 1."
        )
    if source.damages:
        raise source.damages[0]
    base, extra = divmod(len(source), len(targets))
    start = 0
    try:
        for number, target in enumerate(targets):
            stop = start + base + (number < extra)
            with RecordWriter(target, framing=framing) as writer:
                for record, payload in zip(
                    range(start, stop), _payloads(source, start, stop), strict=True
                ):
                    writer.write(_located(source, record, payload, convert))
            start = stop
    finally:
        source.close()
    return targets


def _payloads(source: RecordFiles, start: int, stop: int) -> Iterator[bytes]:
    for payload in source.read(range(start, stop)):
        if isinstance(payload, RecordError):
            raise payload
        yield payload


def _located(
    source: RecordFiles, record: int, payload: bytes, convert: Callable[[bytes], bytes]
) -> bytes:
    try:
        return convert(payload)
    except RecordError as error:
        path, offset, index = source.origin(record)
        raise error.at(path, offset=offset, index=index) from None


def _renamed(payload: bytes, kind: Any, rename: Mapping[str, str] | None) -> dict[str, Any]:
    features = parse_features(payload, kind)
    names = rename or {}
    values: dict[str, Any] = {}
    for name in features:
        value = list_values(features, name)
        if isinstance(value, np.ndarray) and value.dtype == np.int64:
            value = value.tolist()  # Python ints: the writer picks the narrowest list that fits
        values[names.get(name, name)] = [] if value is None else value
    return values

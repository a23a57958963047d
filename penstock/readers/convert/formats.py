"""TFRecord to OFRecord and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from penstock._errors import check_int, listed, nearest
from penstock.readers._errors import FeatureError, RecordError
from penstock.readers.convert.download import Progress, no_progress
from penstock.readers.convert.file_set import ArgumentError, needs_making, write_together
from penstock.readers.convert.slim import write_records
from penstock.readers.ofrecord_files import part_name
from penstock.readers.records import messages
from penstock.readers.records.blobs import build_ofrecord
from penstock.readers.records.features import build_example
from penstock.readers.records.files import RecordFiles, RecordFormat
from penstock.readers.records.framing import OFRECORD, TFRECORD, Framing

# A file's name holds 255 bytes.
_MAX_SUFFIX_LENGTH = 200
# A report costs more than a small record.
_RECORDS_A_REPORT = 64
_LOGGER = logging.getLogger("penstock")

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
    progress: Progress = no_progress,
) -> list[Path]:
    """Copy TFRecord files of `tf.Example`s to a folder of OFRecord parts, in order.

    Integers become int32 where a record's values fit, else int64; floats stay float. Parts are
    contiguous and balanced.

    Args:
      paths: the TFRecord files.
      folder: the folder to write to.
      num_parts: number of parts.
      part_name_suffix_length: digits in the names, -1 for `part-0`.
      rename: feature name in the example -> in the OFRecord, e.g. `SLIM_TO_ONEFLOW`; others are
        kept.
      force: rewrite parts that exist already, and remove all other parts.
      progress: called with `folder`'s name, bytes so far and total bytes.

    Returns:
      The parts.

    Raises:
      RecordError: a record is damaged or not a `tf.Example`.
      ArgumentError: no parts, too few digits for the last one, or two features with the same name.
      StaleFilesError: without `force`, the folder holds other parts.
    """
    _check_part_names(num_parts, part_name_suffix_length)
    names = [part_name(i, suffix_length=part_name_suffix_length) for i in range(num_parts)]
    targets = [Path(folder) / name for name in names]
    if needs_making(targets, force=force, sources=paths):
        renaming = _Renaming(rename or {}, _parse_example)
        source = RecordFiles(paths, RecordFormat())
        _copy(source, targets, renaming, build_ofrecord, OFRECORD, progress)
    return targets


def ofrecord_to_tfrecord(
    parts: Sequence[str | Path],
    paths: Sequence[str | Path],
    *,
    rename: Mapping[str, str] | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Copy OFRecord parts to TFRecord files of `tf.Example`s, in order.

    int32 becomes int64, double becomes float (`tf.Example` has no others, so digits beyond
    float32 are lost).

    Args:
      parts: the OFRecord files, e.g. of `find_parts`.
      paths: the files to make, filled one after another with balanced numbers of records.
      rename: feature name in the OFRecord -> in the example; others keep theirs.
      force: rewrite files that exist already, and remove those of the same name but
        `-of-<another number>`.
      progress: called with the name of the files' folder, bytes so far and bytes in all.

    Returns:
      The files.

    Raises:
      RecordError: a record is damaged or not an OFRecord.
      ArgumentError: no file to write to, or two features with the same name.
      StaleFilesError: without `force`, there are files of the same name but
        `-of-<another number>`.
    """
    targets = [Path(path) for path in paths]
    if needs_making(targets, force=force, sources=parts):
        source = RecordFiles(parts, RecordFormat(framing=OFRECORD, compression=""))
        renaming = _Renaming(rename or {}, messages.parse_ofrecord_features)
        _copy(source, targets, renaming, build_example, TFRECORD, progress)
    return targets


def _parse_example(payload: bytes) -> messages.FeatureMap:
    features, lists = messages.parse_sequence(payload)
    if lists:
        raise FeatureError(
            f"Example got the feature lists {listed(sorted(lists), most=5)}, expected none. It is "
            "a tf.SequenceExample, and an OFRecord has none. Write their steps as features."
        )
    return features


def _check_part_names(num_parts: int, suffix_length: int) -> None:
    check_int("num_parts", num_parts, 1, "Every record needs a file.", ArgumentError)
    num_digits = len(str(num_parts - 1))
    if suffix_length != -1 and not num_digits <= suffix_length <= _MAX_SUFFIX_LENGTH:
        raise ArgumentError(
            f"part_name_suffix_length got {suffix_length}, expected -1, or {num_digits} to "
            f"{_MAX_SUFFIX_LENGTH}. The last part is number {num_parts - 1}. Pass 5 for "
            "part-00000, or -1 for part-0."
        )


def _copy(
    source: RecordFiles,
    targets: list[Path],
    renaming: _Renaming,
    build: Callable[[Mapping[str, object]], bytes],
    framing: Framing,
    progress: Progress,
) -> None:
    if source.damages:
        raise source.damages[0]
    # Balanced: OneFlow gives processes whole parts, and their shares are as equal as the parts.
    base, extra = divmod(len(source), len(targets))
    name, record_bytes = targets[0].parent.name, source.mean_record_bytes

    def convert() -> Iterator[bytes]:
        for done, payload in enumerate(source.read(range(len(source))), 1):
            if isinstance(payload, RecordError):
                raise payload
            try:
                record = build(renaming.parse(payload))
            except RecordError as error:
                raise source.blame(error, done - 1) from None
            if done % _RECORDS_A_REPORT == 0 or done == len(source):
                progress(name, done * record_bytes, len(source) * record_bytes)
            yield record

    records = convert()
    try:
        with write_together(targets) as paths:
            for number, path in enumerate(paths):
                write_records(path, islice(records, base + (number < extra)), framing)
    finally:
        source.close()
    renaming.warn_of_unused()


class _Renaming:
    """The values of a record under new names, and which of the old names there were."""

    def __init__(
        self, names: Mapping[str, str], parse: Callable[[bytes], messages.FeatureMap]
    ) -> None:
        self._names, self._parse = names, parse
        self._met: set[str] = set()

    def parse(self, payload: bytes) -> dict[str, object]:
        features = self._parse(payload)
        values: dict[str, object] = {}
        for name in features:
            value = messages.list_values(features, name)
            if isinstance(value, np.ndarray) and value.dtype == np.int64:
                # Python ints: the writer picks the narrowest list that fits.
                value = value.tolist()
            values[self._names.get(name, name)] = [] if value is None else value
        if len(values) < len(features):
            raise _build_clash_error(list(features), self._names)
        self._met.update(features)
        return values

    def warn_of_unused(self) -> None:
        for name in sorted(set(self._names) - self._met):
            hint = nearest(name, self._met)
            _LOGGER.warning("rename got '%s', which no record has.%s", name, hint)


def _build_clash_error(names: list[str], rename: Mapping[str, str]) -> ArgumentError:
    new_names = [rename.get(name, name) for name in names]
    twice = next(name for name in new_names if new_names.count(name) > 1)
    old = sorted(name for name in names if rename.get(name, name) == twice)
    return ArgumentError(
        f"rename got the name {twice!r} for {' and '.join(map(repr, old))}, expected another name "
        "for each feature. A record holds one feature of a name. Rename the others too."
    )

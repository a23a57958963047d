"""`readers.ofrecord`: batches from OneFlow's OFRecord folders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from penstock.readers._random_access_reader import Decoder
from penstock.readers._read_options import ReadKeywords, ReadOptions
from penstock.readers.records.blobs import BlobConf, Random, parse_ofrecord
from penstock.readers.records.files import RecordFormat, RecordReader
from penstock.readers.records.framing import OFRECORD
from penstock.readers.sharding import BatchSize

Blobs = Sequence[BlobConf] | Mapping[str, BlobConf]


def _parse(
    blobs: Sequence[BlobConf], names: Sequence[str] | None, payload: bytes, random: Random
) -> tuple[np.ndarray, ...] | dict[str, np.ndarray]:
    """Parse a payload to a tuple, or to a dict where the blobs have names."""
    values = parse_ofrecord(payload, blobs, random)
    return values if names is None else dict(zip(names, values, strict=True))


def ofrecord(
    folder: str | Path,
    blobs: Blobs,
    *,
    batch_size: BatchSize | None = None,
    data_part_num: int = -1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    cache_dir: str | Path | None = None,
    **options: Unpack[ReadKeywords],
) -> RecordReader:
    """Read batches from a folder of OFRecord parts, as `oneflow.data.decode_ofrecord` does.

    Unlike OneFlow's stream, a pass ends, and shuffling covers all records. OFRecord has no
    checksums: damage inside a payload is noticed only if it no longer parses.

    Args:
      folder: the folder of the parts.
      blobs: a list of `BlobConf`s for tuple samples in that order, or a dict of name to `BlobConf`
        for dict samples.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      data_part_num: number of parts to read, from part 0; -1 reads all of them.
      part_name_prefix: the prefix of the file names.
      part_name_suffix_length: digits in the names: 5 for `part-00000`, -1 for `part-0`.
      cache_dir: a folder for indexes; by default they lie beside the parts.
      options: keywords of `records.ReadOptions`, such as `shuffle=True`. OneFlow's division is
        `shard=Shard(index, count, rule="files_contiguous")`.

    Returns:
      A reader of tuple or dict batches, leaves `[b, ...]`. Its iterators have `num_skipped`.

    Raises:
      FileNotFoundError: there are no parts, or one is missing.
      RecordError: on first use, a file is damaged or in another format; has its path and byte
        offset.

    >>> import tempfile
    >>> from penstock.readers.records import OFRECORD, RawCodec, RecordWriter, build_ofrecord
    >>> folder = tempfile.TemporaryDirectory()
    >>> with RecordWriter(f"{folder.name}/part-00000", framing=OFRECORD) as writer:
    ...     for label in range(5):
    ...         writer.write(build_ofrecord({"class/label": label}))
    >>> label = BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec())
    >>> reader = ofrecord(folder.name, (label,), batch_size=2, part_name_suffix_length=5)
    >>> [labels.tolist() for (labels,) in reader]
    [[0, 1], [2, 3], [4]]
    >>> folder.cleanup()
    """
    read_options = ReadOptions.from_keywords("ofrecord", batch_size, options)
    files = find_parts(folder, data_part_num, part_name_prefix, part_name_suffix_length)
    # Without checksums a file cannot be told from a compressed one: it is taken as it is.
    form = RecordFormat(framing=OFRECORD, compression="", cache_dir=cache_dir)
    names = tuple(blobs) if isinstance(blobs, Mapping) else None
    blobs = tuple(blobs.values() if isinstance(blobs, Mapping) else blobs)
    decoder = Decoder(
        kind="ofrecord",
        decode=partial(_parse, blobs, names),
        is_random=any(blob.is_random for blob in blobs),
    )
    return RecordReader(files, form, decoder, read_options)


def part_name(number: int, prefix: str = "part-", suffix_length: int = -1) -> str:
    """Return the name of a part.

    >>> part_name(7), part_name(7, suffix_length=5)
    ('part-7', 'part-00007')
    """
    return f"{prefix}{number:0{max(suffix_length, 1)}d}"


def find_parts(
    folder: str | Path,
    num_parts: int = -1,
    prefix: str = "part-",
    suffix_length: int = -1,
) -> list[str]:
    """Return the paths of an OFRecord folder's parts, in order."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    present = {path.name for path in Path(folder).glob("*") if pattern.fullmatch(path.name)}
    if num_parts < 0:
        numbers = [int(pattern.fullmatch(name)[1]) for name in present]  # type: ignore[index]
        num_parts = max(numbers, default=-1) + 1
        # A stray `part-1000000000` must not make a billion names: the first hole is named below.
        num_parts = min(num_parts, len(present) + 1)
    if suffix_length >= 0 and len(str(max(0, num_parts - 1))) > suffix_length:
        raise ValueError(
            f"part_name_suffix_length got {suffix_length}, expected at least "
            f"{len(str(num_parts - 1))}. There are {num_parts} parts. Pass the number of digits in "
            "the names, or -1 for names without zeros in front."
        )
    names = [part_name(number, prefix, suffix_length) for number in range(num_parts)]
    absent = [name for name in names if name not in present]
    if absent or not names:
        wanted = absent or [part_name(0, prefix, suffix_length)]
        shown = ", ".join(sorted(present)[:3]) or "no such name"
        raise FileNotFoundError(
            f"ofrecord folder '{folder}' got {shown}{', ...' if len(present) > 3 else ''} "
            f"({len(present)} parts), expected {', '.join(wanted[:3])}"
            f"{', ...' if len(wanted) > 3 else ''}. Parts are numbered from 0 without gaps. Pass "
            "data_part_num, part_name_prefix and part_name_suffix_length as the names are."
        )
    return [str(Path(folder) / name) for name in names]

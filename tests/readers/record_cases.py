"""The record readers of the contract's battery: three files of 8, 8 and 7 samples."""

import gzip
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from penstock import readers
from penstock.readers import FixedLenFeature, Shard
from tests.readers.case import Case, scratch
from tests.readers.samples import BATCH_SIZE, BROKEN, columns, double, fail_at_broken

FEATURES = {"id": FixedLenFeature((), "int32"), "x": FixedLenFeature((3,), "float32")}
BLOBS = {
    "id": readers.BlobConf("id", (), "int32", readers.RawCodec()),
    "x": readers.BlobConf("x", (3,), "float32", readers.RawCodec()),
}


def write(path: Path, numbers: range, framing: Any, build: Callable[[Any], bytes]) -> None:
    whole = columns()
    with readers.RecordWriter(path, framing=framing) as writer:
        for number in numbers:
            writer.write(build({name: column[number] for name, column in whole.items()}))


PARTS = (range(8), range(8, 16), range(16, 23))


@cache
def tfrecords() -> Path:
    """Return a folder of TFRecord files, and beside them a compressed and a damaged one."""
    folder = scratch() / "tfrecord"
    folder.mkdir()
    for number, part in enumerate(PARTS):
        write(folder / f"{number}.tfrecord", part, readers.TFRECORD, readers.build_example)
    whole = b"".join((folder / f"{number}.tfrecord").read_bytes() for number in range(3))
    (folder / "all.gz").write_bytes(gzip.compress(whole))
    write(folder / "one", range(1), readers.TFRECORD, readers.build_example)
    damaged = bytearray((folder / "one").read_bytes())
    damaged[20] ^= 1  # in the payload: its checksum shows it
    (folder / "damaged").write_bytes(bytes(damaged) + whole)
    return folder


@cache
def ofrecords() -> Path:
    """Return a folder of OFRecord parts."""
    folder = scratch() / "ofrecord"
    folder.mkdir()
    for number, part in enumerate(PARTS):
        write(folder / f"part-{number}", part, readers.OFRECORD, readers.build_ofrecord)
    return folder


def tfrecord(shard: Shard, **options: Any) -> Any:
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": 2, **options}
    return readers.tfrecord(tfrecords() / "[0-9].tfrecord", FEATURES, shard=shard, **options)


def ofrecord(shard: Shard, **options: Any) -> Any:
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": 2, **options}
    return readers.ofrecord(ofrecords(), BLOBS, shard=shard, **options)


def by_files(make: Callable[[Shard], Any], rule: Any) -> Callable[[Shard], Any]:
    def make_ruled(shard: Shard) -> Any:
        with warnings.catch_warnings(action="ignore"):  # 3 files over 2 processes
            reader = make(Shard(shard.index, shard.count, rule=rule))
            assert reader.order  # indexes the files, and warns
        return reader

    return make_ruled


def broken(make: Callable[..., Any], path: Path, **options: Any) -> Callable[[], tuple[Any, str]]:
    return lambda: (
        make(Shard(), shuffle=False, decode=fail_at_broken, **options),
        f"in record {BROKEN - PARTS[1].start} of '{path}' at byte ",
    )


RECORDS = [
    Case(
        name="tfrecord",
        make=tfrecord,
        with_workers=lambda n: tfrecord(Shard(), num_workers=n),
        broken=broken(tfrecord, tfrecords() / "1.tfrecord"),
        is_lockstep=True,
    ),
    Case(
        name="tfrecord-in-caller",
        make=lambda shard: tfrecord(shard, shuffle=False, num_workers=0),
        broken=broken(tfrecord, tfrecords() / "1.tfrecord", num_workers=0),
        is_lockstep=True,
    ),
    Case(
        name="tfrecord-samples",
        make=lambda shard: tfrecord(shard, batch_size=None),
        with_workers=lambda n: tfrecord(Shard(), batch_size=None, num_workers=n),
        broken=broken(tfrecord, tfrecords() / "1.tfrecord", batch_size=None),
    ),
    Case(
        name="tfrecord-full-batches-only",
        make=lambda shard: tfrecord(shard, drop_remainder=True),
        is_complete=False,
        is_lockstep=True,
    ),
    Case(
        name="tfrecord-decoded-and-cached",
        make=lambda shard: tfrecord(shard, decode=double, cache_records=True),
        is_lockstep=True,
    ),
    Case(
        name="tfrecord-compressed",
        make=lambda shard: readers.tfrecord(
            tfrecords() / "all.gz",
            FEATURES,
            batch_size=BATCH_SIZE,
            shuffle=True,
            shard=shard,
            cache_dir=scratch() / "plain",
        ),
        is_lockstep=True,
    ),
    Case(
        name="tfrecord-that-skips-a-damaged-record",
        make=lambda shard: readers.tfrecord(
            tfrecords() / "damaged",
            FEATURES,
            batch_size=BATCH_SIZE,
            shuffle=True,
            shard=shard,
            on_error="skip",
        ),
        is_lockstep=True,
    ),
    Case(
        name="tfrecord-by-files-round-robin",
        make=by_files(tfrecord, "files_round_robin"),
        is_lockstep=True,
    ),
    Case(
        name="ofrecord",
        make=ofrecord,
        with_workers=lambda n: ofrecord(Shard(), num_workers=n),
        broken=broken(ofrecord, ofrecords() / "part-1"),
        is_lockstep=True,
    ),
    Case(
        name="ofrecord-by-files-contiguous",
        make=by_files(ofrecord, "files_contiguous"),
        is_lockstep=True,
    ),
]

"""The readers of files of the contract's battery: records in three files of 8, 8 and 7 samples,
images, named sets, TFDS.
"""

import gzip
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock import readers
from penstock.readers import FixedLenFeature, Shard
from tests.readers.case import Case, lockstep, require, scratch
from tests.readers.published import write_examples, write_records
from tests.readers.samples import BATCH_SIZE, BROKEN, NUM_SAMPLES, columns, double, fail_at_broken

FEATURES = {"id": FixedLenFeature((), "int32"), "x": FixedLenFeature((3,), "float32")}
BLOBS = {
    "id": readers.BlobConf("id", (), "int32", readers.RawCodec()),
    "x": readers.BlobConf("x", (3,), "float32", readers.RawCodec()),
}


def write(path: Path, numbers: range, framing: Any, build: Callable[[Any], bytes]) -> None:
    whole = columns()
    samples = ({name: column[number] for name, column in whole.items()} for number in numbers)
    write_records(path, map(build, samples), framing=framing)


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


def tfrecord(shard: Shard, name: str = "[0-9].tfrecord", **options: Any) -> Any:
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": 2, **options}
    return readers.tfrecord(tfrecords() / name, FEATURES, shard=shard, **options)


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


def with_workers(make: Callable[..., Any], **options: Any) -> Callable[[int, Any], Any]:
    return lambda count, kind: make(Shard(), num_workers=count, workers=kind, **options)


_SECOND = tfrecords() / "1.tfrecord"
RECORDS = [
    lockstep(
        "tfrecord", tfrecord, with_workers=with_workers(tfrecord), broken=broken(tfrecord, _SECOND)
    ),
    lockstep(
        "tfrecord-in-caller",
        lambda shard: tfrecord(shard, shuffle=False, num_workers=0),
        broken=broken(tfrecord, _SECOND, num_workers=0),
    ),
    Case(
        "tfrecord-samples",
        lambda shard: tfrecord(shard, batch_size=None),
        with_workers=with_workers(tfrecord, batch_size=None),
        broken=broken(tfrecord, _SECOND, batch_size=None),
    ),
    lockstep(
        "tfrecord-full-batches-only",
        lambda shard: tfrecord(shard, drop_remainder=True),
        is_complete=False,
    ),
    lockstep(
        "tfrecord-decoded-and-cached",
        lambda shard: tfrecord(shard, decode=double, cache_records=True),
    ),
    lockstep(
        "tfrecord-compressed",
        lambda shard: tfrecord(shard, "all.gz", cache_dir=scratch() / "plain"),
    ),
    lockstep(
        "tfrecord-that-skips-a-damaged-record",
        lambda shard: tfrecord(shard, "damaged", on_error="skip"),
    ),
    lockstep("tfrecord-by-files-round-robin", by_files(tfrecord, "files_round_robin")),
    lockstep(
        "ofrecord",
        ofrecord,
        with_workers=with_workers(ofrecord),
        broken=broken(ofrecord, ofrecords() / "part-1"),
    ),
    lockstep("ofrecord-by-files-contiguous", by_files(ofrecord, "files_contiguous")),
]


@cache
def pictures() -> Path:
    """Return a folder of as many classes as samples, an image each: the label is the number."""
    import cv2

    folder = scratch() / "pictures"
    for number in range(NUM_SAMPLES):
        (folder / f"{number:02}").mkdir(parents=True)
        cv2.imwrite(str(folder / f"{number:02}" / "it.png"), np.full((8, 8, 3), number, np.uint8))
    return folder


def image_folder(shard: Shard, **options: Any) -> Any:
    options = {"shuffle": True, "num_workers": 2, **options}
    return readers.image_folder(pictures(), BATCH_SIZE, shard=shard, **options)


def broken_pictures() -> tuple[Any, str]:
    return (
        image_folder(Shard(), shuffle=False, decode=fail_at_broken),
        f"in image_folder, record {BROKEN}: {pictures() / str(BROKEN) / 'it.png'}",
    )


@cache
def cifar100() -> Path:
    """Return a folder with CIFAR-100 as it is published, a label a sample."""
    folder = scratch() / "cifar100"
    folder.mkdir()
    records = np.zeros((NUM_SAMPLES, 2 + 3072), np.uint8)
    records[:, 1] = np.arange(NUM_SAMPLES)
    (folder / "train.bin").write_bytes(records.tobytes())
    return folder


@cache
def slim_cifar100() -> Path:
    """Return a folder with CIFAR-100 as TF-Slim's converter writes it, a label a sample."""
    folder = scratch() / "slim"
    folder.mkdir()
    png = readers.records.encode_png(np.zeros((32, 32, 3), np.uint8))
    for part, numbers in enumerate(PARTS):
        examples = [{"image/encoded": png, "image/class/label": number} for number in numbers]
        write_examples(folder / f"cifar100_train_{part}.tfrecord", examples)
    return folder


def of_records(shard: Shard, folder: Callable[[], Path] = slim_cifar100, **options: Any) -> Any:
    options = {"shuffle": True, "num_workers": 2, "dataset_dir": folder(), **options}
    return readers.dataset("cifar100", "train", BATCH_SIZE, shard=shard, **options)


PREPARE_TFDS = """
import sys
import numpy as np
import tensorflow_datasets as tfds

class Numbered(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Tensor(shape=(4, 4, 1), dtype=np.uint8),
            "label": tfds.features.ClassLabel(num_classes=int(sys.argv[2])),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(int(sys.argv[2])):
            yield number, {"image": np.full((4, 4, 1), number, np.uint8), "label": number}

Numbered(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


@cache
def prepared() -> Path:
    """Return a folder in which TFDS has prepared a set."""
    folder = scratch() / "tfds"
    command = [sys.executable, "-c", PREPARE_TFDS, str(folder), str(NUM_SAMPLES)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def tfds(shard: Shard, **options: Any) -> Any:
    require("tensorflow_datasets")
    options = {"data_dir": prepared(), "shuffle": True, "num_workers": 2, **options}
    return readers.tfds("numbered", "train", BATCH_SIZE, shard=shard, **options)


NAMED = [
    lockstep(
        "image_folder",
        image_folder,
        with_workers=with_workers(image_folder),
        broken=broken_pictures,
    ),
    lockstep("dataset-in-memory", lambda shard: of_records(shard, cifar100)),
    lockstep("dataset-of-records", of_records, with_workers=with_workers(of_records)),
    lockstep(
        "tfds",
        tfds,
        with_workers=with_workers(tfds),
        broken=lambda: (tfds(Shard(), decode=fail_at_broken), "in tfds, record "),
        needs="tensorflow_datasets",
    ),
]

import os
import resource
import zlib
from pathlib import Path

import numpy as np
import pytest

from penstock.readers.records import (
    OFRECORD,
    BlobConf,
    BytesListCodec,
    FixedLenFeature,
    ImageCodec,
    ImageFeature,
    RawCodec,
    RecordError,
    RecordFiles,
    RecordFormat,
    VarLenFeature,
    build_example,
    build_ofrecord,
    encode_png,
    parse_example,
    parse_ofrecord,
)
from penstock.readers.records.framing import TFRECORD
from tests.readers.records.mutations import mutate

NUM_CASES = 100_000
SLICE = 400
MAX_GROWTH_BYTES = 256 << 20

PNG = encode_png(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
SPEC = {
    "image": ImageFeature((4, 4, 3), resize="bilinear"),
    "label": FixedLenFeature((), "int32", key="image/class/label"),
    "weights": FixedLenFeature((2, 2), "float32", default_value=0.0),
    "boxes": VarLenFeature("float32", max_length=4),
    "ids": VarLenFeature("int64"),
}
EXAMPLES = [
    build_example(
        {
            "image/encoded": PNG,
            "image/class/label": 1000 + number,
            "weights": [0.5, 1.5, 2.5, 3.5],
            "boxes": [0.25] * number,
            "ids": [number, -number],
        }
    )
    for number in range(4)
]
BLOBS = (
    BlobConf("encoded", shape=(4, 4, 3), dtype="float32", codec=ImageCodec()),
    BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec()),
    BlobConf("pixels", shape=(6,), dtype="uint8", codec=RawCodec(auto_zero_padding=True)),
    BlobConf("words", shape=(2, 4), dtype="int8", codec=BytesListCodec()),
)
OFRECORDS = [
    build_ofrecord(
        {"encoded": PNG, "class/label": number, "pixels": b"\xffabc", "words": [b"ab", b"c"]}
    )
    for number in range(4)
]


def check_tfrecord_file(case: int, path: Path) -> None:
    """Damage a file: every record that is read is one that was written."""
    random = np.random.default_rng([1, case])
    data = b"".join(map(TFRECORD.frame, EXAMPLES))
    kind = case % 4
    if kind == 2:
        data = zlib.compress(data, wbits=31)
    if kind == 3:
        data = zlib.compress(data, wbits=15)
    path.write_bytes(mutate(data, random))
    form = RecordFormat(cache_dir=str(path.parent), max_plain_bytes=1 << 24)
    try:
        files = RecordFiles([path], form)
    except RecordError:
        return
    for payload in files.read(range(len(files))):
        assert isinstance(payload, RecordError) or payload in EXAMPLES
    files.close()
    for kept in (path.parent / "plain").glob("*"):
        kept.unlink()


def check_example_payload(case: int, path: Path) -> None:
    """Damage a payload whose checksum fits: samples of the declared shapes, or our error."""
    random = np.random.default_rng([2, case])
    payload = mutate(EXAMPLES[case % 4], random)
    try:
        sample = parse_example(payload, SPEC)
    except RecordError:
        return
    assert sample["image"].shape == (4, 4, 3)
    assert sample["image"].dtype == np.uint8
    assert sample["label"].shape == ()
    assert sample["weights"].shape == (2, 2)
    assert sample["boxes"].shape == (4,)
    assert sample["ids"].shape == (sample["ids_length"],)


def check_ofrecord_file(case: int, path: Path) -> None:
    """Damage an OFRecord file, which has no checksums: blobs of the declared shapes, or ours."""
    random = np.random.default_rng([3, case])
    path.write_bytes(mutate(b"".join(map(OFRECORD.frame, OFRECORDS)), random))
    files = RecordFiles([path], RecordFormat(framing=OFRECORD, compression=""))
    for payload in files.read(range(len(files))):
        if isinstance(payload, RecordError):
            continue
        try:
            blobs = parse_ofrecord(payload, BLOBS)
        except RecordError:
            continue
        for blob, conf in zip(blobs, BLOBS, strict=True):
            assert (blob.shape, blob.dtype) == (conf.shape, conf.dtype)
    files.close()


CHECKS = (check_tfrecord_file, check_example_payload, check_ofrecord_file)


def run_cases(cases: range, folder: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in cases:
        CHECKS[case % 3](case, folder / "damaged")
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert growth < MAX_GROWTH_BYTES


def test_undamaged_records_give_the_samples():
    sample = parse_example(EXAMPLES[3], SPEC)
    assert sample["image"].tolist() == np.arange(48).reshape(4, 4, 3).tolist()
    assert (int(sample["label"]), sample["ids"].tolist()) == (1003, [3, -3])
    image, label, pixels, words = parse_ofrecord(OFRECORDS[3], BLOBS)
    assert image[0, 0].tolist() == [2.0, 1.0, 0.0]  # BGR
    assert (int(label), pixels.tolist()) == (3, [255, 97, 98, 99, 0, 0])
    assert words.tolist() == [[97, 98, 0, 0], [99, 0, 0, 0]]


def test_mutated_records_give_right_records_or_our_error(tmp_path: Path):
    run_cases(range(SLICE), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_mutated_records_give_right_records_or_our_error_in_bulk(part: int, tmp_path: Path):
    size = NUM_CASES // 10
    run_cases(range(part * size, (part + 1) * size), tmp_path)


def test_hostile_image_header_is_refused_before_anything_is_allocated():
    claims = PNG[:16] + (60_000).to_bytes(4, "big") * 2 + PNG[24:]
    payload = build_example({"image/encoded": claims, "image/class/label": 1})
    with pytest.raises(RecordError, match="60000 x 60000 pixels, expected a JPEG or PNG of 1 to"):
        parse_example(payload, SPEC)


def test_no_file_stays_open(tmp_path: Path):
    before = len(os.listdir("/proc/self/fd"))
    run_cases(range(60), tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before

from pathlib import Path

import numpy as np
import pytest

from penstock.readers import convert
from penstock.readers.ofrecord_files import find_parts, ofrecord
from penstock.readers.records import (
    OFRECORD,
    BlobConf,
    FeatureError,
    ImageCodec,
    RawCodec,
    RecordError,
    RecordFiles,
    RecordFormat,
    RecordWriter,
    build_example,
    encode_png,
)
from penstock.readers.records.messages import OFRecord, parse_features


def payloads(paths: list[Path]) -> list:
    files = RecordFiles(paths, RecordFormat())
    try:
        return list(files.read(range(len(files))))
    finally:
        files.close()


@pytest.fixture
def source(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"]
    number = 0
    for path in paths:
        with RecordWriter(path) as writer:
            for _ in range(4):
                values = {
                    "image/encoded": encode_png(np.full((2, 2, 3), number, np.uint8)),
                    "image/class/label": number,
                    "big": 2**40 + number,
                    "scores": [0.5, number],
                    "empty": [],
                    "names": [b"a", b"\0"],
                }
                writer.write(build_example(values))
                number += 1
    return paths


def test_there_and_back_gives_the_same_bytes(source: list[Path], tmp_path: Path):
    parts = convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=3)
    assert [part.name for part in parts] == ["part-00000", "part-00001", "part-00002"]
    back = convert.ofrecord_to_tfrecord(
        find_parts(tmp_path / "of", suffix_length=5), [tmp_path / "c.tfrecord"]
    )
    assert payloads(back) == payloads(source)


def test_converted_records_are_read_with_oneflows_blobs(source: list[Path], tmp_path: Path):
    convert.tfrecord_to_ofrecord(
        source,
        tmp_path / "of",
        num_parts=2,
        part_name_suffix_length=-1,
        rename=convert.SLIM_TO_ONEFLOW,
    )
    blobs = (
        BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec()),
        BlobConf("encoded", shape=(2, 2, 3), dtype="uint8", codec=ImageCodec()),
    )
    ((labels, images),) = ofrecord(tmp_path / "of", blobs, batch_size=8)
    assert labels.tolist() == list(range(8))
    assert images[:, 0, 0, 0].tolist() == list(range(8))
    files = RecordFiles(
        [tmp_path / "of" / "part-0"], RecordFormat(framing=OFRECORD, compression="")
    )
    (payload,) = files.read([0])
    files.close()
    features = parse_features(payload, OFRecord)
    kinds = {name: features[name].WhichOneof("kind") for name in features}
    assert kinds["class/label"] == "int32_list"
    assert kinds["big"] == "int64_list"
    assert kinds["scores"] == "float_list"


def test_damaged_record_stops_the_conversion(source: list[Path], tmp_path: Path):
    data = bytearray(source[1].read_bytes())
    data[20] ^= 1
    source[1].write_bytes(data)
    with pytest.raises(RecordError, match=r"b\.tfrecord', record 0 at byte 0: TFRecord payload"):
        convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=1)
    assert list((tmp_path / "of").iterdir()) == []


def test_record_that_is_no_example_is_named(tmp_path: Path):
    with RecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"\xff")
    with pytest.raises(FeatureError, match=r"a\.tfrecord', record 0 at byte 0: Example payload"):
        convert.tfrecord_to_ofrecord([tmp_path / "a.tfrecord"], tmp_path / "of", num_parts=1)


def test_no_target_is_an_error(source: list[Path], tmp_path: Path):
    with pytest.raises(ValueError, match="targets got none, expected at least one"):
        convert.tfrecord_to_ofrecord(source, tmp_path, num_parts=0)


def test_files_that_are_there_stay_unless_forced(source: list[Path], tmp_path: Path, caplog):
    (tmp_path / "of").mkdir()
    parts = convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2)
    back = convert.ofrecord_to_tfrecord(parts, [tmp_path / "back"])
    whole = back[0].read_bytes()
    for path in (*parts, *back):
        path.write_bytes(b"")
    assert convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2) == parts
    assert convert.ofrecord_to_tfrecord(parts, back) == back
    assert [path.stat().st_size for path in (*parts, *back)] == [0, 0, 0]
    assert len(caplog.messages) == 2
    convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2, force=True)
    convert.ofrecord_to_tfrecord(parts, back, force=True)
    assert back[0].read_bytes() == whole

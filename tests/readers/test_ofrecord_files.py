import itertools
from pathlib import Path

import numpy as np
import pytest

from penstock.readers.ofrecord_files import find_parts, ofrecord
from penstock.readers.records import (
    OFRECORD,
    BlobConf,
    ImageCodec,
    ImagePreprocessor,
    ImageResizePreprocessor,
    NormByChannelPreprocessor,
    RawCodec,
    RecordError,
    build_ofrecord,
    encode_png,
)
from tests.readers.published import write_records

LABEL = BlobConf("class/label", shape=(), dtype=np.int32, codec=RawCodec())
IMAGE = BlobConf(
    "encoded",
    shape=(4, 4, 3),
    dtype=np.float32,
    codec=ImageCodec([ImageResizePreprocessor(4, 4)]),
    preprocessors=[NormByChannelPreprocessor((123.68, 116.78, 103.94))],
)
GRAY = np.full((6, 8, 3), 100, np.uint8)


def write_parts(folder: Path, names: list[str]) -> Path:
    """Write parts of three records."""
    labels = itertools.count()
    for name in names:
        blobs = [{"encoded": encode_png(GRAY), "class/label": next(labels)} for _ in range(3)]
        write_records(folder / name, map(build_ofrecord, blobs), framing=OFRECORD)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Eight parts of three records, with names without zeros in front."""
    return write_parts(tmp_path, [f"part-{number}" for number in range(8)])


def test_oneflow_seeds_pipeline_gives_tuples_in_blob_order(folder):
    reader = ofrecord(folder, (LABEL, IMAGE), batch_size=12, data_part_num=8)
    (labels, images), (more_labels, _) = reader
    assert labels.tolist() + more_labels.tolist() == list(range(24))
    assert (images.shape, images.dtype) == ((12, 4, 4, 3), np.float32)
    expected = np.float32(100) - np.float32((123.68, 116.78, 103.94))
    np.testing.assert_array_equal(images[3, 2, 1], expected)


def test_parts_are_in_the_order_of_their_numbers(tmp_path):
    write_parts(tmp_path, [f"part-{number}" for number in range(12)])
    names = [Path(path).name for path in find_parts(tmp_path)]
    assert names == [f"part-{number}" for number in range(12)]
    assert len(find_parts(tmp_path, 3)) == 3


def test_suffix_length_and_prefix_are_honoured(tmp_path):
    write_parts(tmp_path, ["data-00000", "data-00001", "part-0", "part-0.crc", "_SUCCESS"])
    names = [Path(path).name for path in find_parts(tmp_path, prefix="data-", suffix_length=5)]
    assert names == ["data-00000", "data-00001"]
    assert [Path(path).name for path in find_parts(tmp_path)] == ["part-0"]


def test_missing_part_is_named_and_what_is_there_is_shown(tmp_path):
    write_parts(tmp_path, ["part-00000", "part-00001", "part-00003"])
    with pytest.raises(FileNotFoundError, match=r"part-00001, .* expected part-0, part-1, part-2"):
        find_parts(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\(3 parts\), expected part-00002\."):
        find_parts(tmp_path, suffix_length=5)
    with pytest.raises(FileNotFoundError, match=r"no such name \(0 parts\), expected part-0\."):
        find_parts(tmp_path / "none")
    with pytest.raises(ValueError, match="part_name_suffix_length got 1, expected at least 2"):
        find_parts(tmp_path, 11, suffix_length=1)


def test_random_preprocessors_repeat_on_resume(tmp_path):
    image = np.zeros((4, 4, 3), np.uint8)
    image[:, 0] = 255
    payload = build_ofrecord({"encoded": encode_png(image)})
    write_records(tmp_path / "part-0", [payload] * 40, framing=OFRECORD)
    codec = ImageCodec([ImagePreprocessor("mirror")])
    blobs = [BlobConf("encoded", shape=(4, 4, 3), dtype="uint8", codec=codec)]
    reader = ofrecord(tmp_path, blobs, batch_size=8, seed=5)
    iterator = iter(reader)
    next(iterator)
    state = iterator.get_state()
    rest = [batch[0].tolist() for batch in iterator]
    resumed = iter(ofrecord(tmp_path, blobs, batch_size=8, seed=5, num_workers=0))
    resumed.set_state(state)
    assert [batch[0].tolist() for batch in resumed] == rest
    mirrored = sum(rows[0][0][0] == 0 for batch in rest for rows in batch)
    assert 0 < mirrored < 32


def test_truncated_part_is_an_error_with_file_and_byte_offset(folder):
    path = folder / "part-5"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    expected = rf"part-5', record 2 at byte {size // 3 * 2}: OFRecord record got"
    with pytest.raises(RecordError, match=expected):
        list(ofrecord(folder, [LABEL], batch_size=6))
    iterator = iter(ofrecord(folder, [LABEL], batch_size=6, on_error="skip"))
    assert sum(len(labels) for (labels,) in iterator) == 23
    assert iterator.num_skipped == 1


def test_blob_that_does_not_fit_is_an_error_with_its_record(folder):
    wide = BlobConf("class/label", shape=(2,), dtype="int32", codec=RawCodec())
    expected = r"part-0', record 0 at byte 0: blob 'class/label' got 1 values, expected 2"
    with pytest.raises(RecordError, match=expected):
        list(ofrecord(folder, [wide], batch_size=6))

import re

import pytest

from penstock.readers.records import RecordWriter
from penstock.readers.records.framing import OFRECORD, TFRECORD, FramingError

# The bytes TensorFlow writes for the payload b"abc", and OneFlow for class/label = [7].
GOLDEN_TFRECORD = bytes.fromhex("0300000000000000b099490e6162636e57f121")
GOLDEN_OFRECORD = bytes.fromhex("16000000000000000a140a0b636c6173732f6c6162656c120522030a0107")


@pytest.mark.parametrize(
    ("framing", "payload", "golden"),
    [(TFRECORD, b"abc", GOLDEN_TFRECORD), (OFRECORD, GOLDEN_OFRECORD[8:], GOLDEN_OFRECORD)],
)
def test_file_of_the_originals_bytes_appears_when_the_writer_is_closed(
    framing, payload, golden, tmp_path
):
    writer = RecordWriter(tmp_path / "new" / "a.tfrecord", framing=framing)
    writer.write(payload)
    assert not writer.path.exists()
    writer.close()
    writer.close()
    assert writer.path.read_bytes() == golden
    assert writer.num_records == 1
    assert [path.name for path in writer.path.parent.iterdir()] == ["a.tfrecord"]


@pytest.mark.parametrize("position", range(len(GOLDEN_TFRECORD)))
def test_tfrecord_with_any_byte_changed_is_an_error(position):
    record = bytearray(GOLDEN_TFRECORD)
    record[position] ^= 0x10
    with pytest.raises(FramingError):
        TFRECORD.payload(bytes(record), 3)


@pytest.mark.parametrize("length", [-1, (64 << 20) + 1, 1 << 62])
def test_ofrecord_length_out_of_bounds_is_an_error(length):
    header = length.to_bytes(8, "little", signed=True)
    expected = f"got {length % (1 << 64)} bytes, expected 0 to 67108864"
    with pytest.raises(FramingError, match=re.escape(expected)):
        OFRECORD.payload_length(header)


def test_payload_longer_than_readers_take_is_not_written():
    with pytest.raises(FramingError, match="got 67108865 bytes, expected at most 67108864"):
        OFRECORD.frame(bytes((64 << 20) + 1))


def test_exception_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"before")
    writer = RecordWriter(path)
    with pytest.raises(TypeError), writer:
        writer.write(3)
    assert path.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_writer_that_is_dropped_leaves_nothing(tmp_path):
    writer = RecordWriter(tmp_path / "a.tfrecord")
    writer.write(b"abc")
    del writer
    assert list(tmp_path.iterdir()) == []


def test_file_may_be_read_by_others_as_the_umask_says(tmp_path):
    with RecordWriter(tmp_path / "a.tfrecord"):
        pass
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_compressed_ofrecord_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="OFRecord compression got 'GZIP', expected '', 'GZIP'"):
        RecordWriter(tmp_path / "part-0", framing=OFRECORD, compression="GZIP")
    assert list(tmp_path.iterdir()) == []

import re

import pytest

from penstock.readers.records.framing import OFRECORD, TFRECORD, FramingError

# The bytes TensorFlow writes for the payload b"abc", and OneFlow for class/label = [7].
GOLDEN_TFRECORD = bytes.fromhex("0300000000000000b099490e6162636e57f121")
GOLDEN_OFRECORD = bytes.fromhex("16000000000000000a140a0b636c6173732f6c6162656c120522030a0107")


def test_tfrecord_frame_has_tensorflows_bytes():
    assert TFRECORD.frame(b"abc") == GOLDEN_TFRECORD


def test_ofrecord_frame_has_oneflows_bytes():
    assert OFRECORD.frame(GOLDEN_OFRECORD[8:]) == GOLDEN_OFRECORD


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

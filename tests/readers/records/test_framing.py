import re

import pytest

from penstock._checksums import masked_crc32c
from penstock.readers.records.framing import OFRECORD, TFRECORD, FramingError

# The bytes TensorFlow writes for the payload b"abc", and OneFlow for class/label = [7].
GOLDEN_TFRECORD = bytes.fromhex("0300000000000000b099490e6162636e57f121")
GOLDEN_EXAMPLE = bytes.fromhex("0a1c0a1a0a11696d6167652f636c6173732f6c6162656c12051a030a0107")
GOLDEN_OFRECORD = bytes.fromhex(
    "16000000000000000a140a0b636c6173732f6c6162656c120522030a0107",
)


def test_tfrecord_frame_has_tensorflows_bytes():
    assert TFRECORD.frame(b"abc") == GOLDEN_TFRECORD


def test_tfrecord_frame_of_an_example_has_tensorflows_checksums():
    frame = TFRECORD.frame(GOLDEN_EXAMPLE)
    assert frame[8:12].hex() == "d9dc1232"
    assert frame[-4:].hex() == "339aed4e"


def test_ofrecord_frame_has_oneflows_bytes():
    assert OFRECORD.frame(GOLDEN_OFRECORD[8:]) == GOLDEN_OFRECORD


def test_crc_is_castagnolis():
    # RFC 3720, B.4: 32 bytes of zeros have CRC-32C 8a9136aa.
    crc = 0x8A9136AA
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc32c(bytes(32)) == masked


@pytest.mark.parametrize("position", range(len(GOLDEN_TFRECORD)))
def test_tfrecord_with_any_byte_changed_is_an_error(position: int):
    record = bytearray(GOLDEN_TFRECORD)
    record[position] ^= 0x10
    with pytest.raises(FramingError):
        TFRECORD.payload(bytes(record), 3)


@pytest.mark.parametrize("length", [-1, (64 << 20) + 1, 1 << 62])
def test_ofrecord_length_out_of_bounds_is_an_error(length: int):
    header = length.to_bytes(8, "little", signed=True)
    expected = f"got {length % (1 << 64)} bytes, expected 0 to 67108864"
    with pytest.raises(FramingError, match=re.escape(expected)):
        OFRECORD.payload_length(header)


def test_payload_longer_than_readers_take_is_not_written():
    with pytest.raises(FramingError, match="got 67108865 bytes, expected at most 67108864"):
        OFRECORD.frame(bytes((64 << 20) + 1))

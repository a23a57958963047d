"""CRC-32C (Castagnoli), plain and as TensorFlow masks it: of records, checkpoints and event files.

Imported where something is read or written: google_crc32c is no part of `import penstock`.
"""

from __future__ import annotations

import google_crc32c
import numpy as np

_PIECE_BYTES = 1 << 22
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C of bytes, or of an array `[n]` uint8.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if len(data) <= _PIECE_BYTES:
        return google_crc32c.value(data)
    crc = 0
    # In pieces: google_crc32c keeps the GIL while it computes, 4 MiB take 0.3 ms.
    for start in range(0, len(data), _PIECE_BYTES):
        crc = google_crc32c.extend(crc, data[start : start + _PIECE_BYTES])
    return crc


def masked_crc32c(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C: rotated and offset.

    So the checksum of bytes that contain checksums stays useful.

    >>> masked_crc32c(b"abc").to_bytes(4, "little").hex()
    '6e57f121'
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF

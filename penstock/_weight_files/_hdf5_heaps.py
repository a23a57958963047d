"""A check of HDF5's global heaps, which hold names: a damaged one hangs the HDF5 library.

Two of some thousand files damaged at random sent HDF5 2.0 into an endless loop: its parser never
gets past an object of length 0 in such a heap. Ctrl-C does not end it.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from types import MappingProxyType

from penstock._weight_files._file import WeightFileError

HEAD = b"GCOL\x01\x00\x00\x00"  # signature and version
# Of the heap, and of each object in it.
HEADER_BYTES = 16
# Where the superblock says how many bytes a length takes, by the superblock's version.
LENGTH_AT: Mapping[bytes, int] = MappingProxyType(
    {b"\x00": 14, b"\x01": 14, b"\x02": 10, b"\x03": 10}
)


def check_heaps(content: bytes | mmap.mmap) -> None:
    """Raise unless every global heap in a file is whole: objects one after the other to its end.

    Raises:
      WeightFileError: one is damaged.
    """
    length_at = LENGTH_AT.get(content[8:9], 0)
    # The sizes of offsets and of lengths: Keras's files have 8 bytes for both.
    if content[length_at - 1 : length_at + 1] != b"\x08\x08":
        raise _damage_error(8)
    begin = content.find(HEAD)
    while begin >= 0:
        size = int.from_bytes(content[begin + 8 : begin + HEADER_BYTES], "little")
        end = begin + size
        if not HEADER_BYTES <= size <= len(content) - begin:
            raise _damage_error(begin)
        _check_objects(content, begin + HEADER_BYTES, end)
        begin = content.find(HEAD, end)


def _check_objects(content: bytes | mmap.mmap, position: int, end: int) -> None:
    """Raise unless the objects of a heap, the last one free space, fill it."""
    # Less than a header at the end is free space.
    while end - position >= HEADER_BYTES:
        index = int.from_bytes(content[position : position + 2], "little")
        length = int.from_bytes(content[position + 8 : position + HEADER_BYTES], "little")
        # Index 0 is free space, whose length counts its header.
        if index == 0 and length < HEADER_BYTES:
            raise _damage_error(position)
        position += length if index == 0 else HEADER_BYTES + (length + 7) // 8 * 8
    if position > end:
        raise _damage_error(position)


def _damage_error(position: int) -> WeightFileError:
    return WeightFileError(
        f"got damage at byte {position}, expected an HDF5 file that Keras wrote. It is cut off or "
        "damaged: download it again."
    )

"""A check of HDF5's global heaps, which hold names; the HDF5 library never returns from a bad one.

Two of some thousand files damaged at random sent HDF5 2.0 into a loop without end: an object of
length 0 in such a heap, past which its parser does not get. Ctrl-C does not end it.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from types import MappingProxyType

from penstock._weight_files._file import Refusal

HEAD = b"GCOL\x01\x00\x00\x00"  # signature and version
HEADER_BYTES = 16  # of the heap, and of each object in it
LENGTH_AT: Mapping[bytes, int] = MappingProxyType(  # in the superblock, by its version
    {b"\x00": 14, b"\x01": 14, b"\x02": 10, b"\x03": 10}
)


def check(content: bytes | mmap.mmap) -> None:
    """Raise unless every global heap in a file is whole: objects one after the other to its end.

    Raises:
      Refusal: one is damaged.
    """
    length_at = LENGTH_AT.get(content[8:9], 0)
    if content[length_at - 1 : length_at + 1] != b"\x08\x08":  # sizes of offsets and of lengths
        raise _damaged(8)
    begin = content.find(HEAD)
    while begin >= 0:
        size = int.from_bytes(content[begin + 8 : begin + HEADER_BYTES], "little")
        end = begin + size
        if not HEADER_BYTES <= size <= len(content) - begin:
            raise _damaged(begin)
        _check_objects(content, begin + HEADER_BYTES, end)
        begin = content.find(HEAD, end)


def _check_objects(content: bytes | mmap.mmap, position: int, end: int) -> None:
    """Raise unless the objects of a heap, the last one free space, fill it."""
    while end - position >= HEADER_BYTES:  # less is free space without a header
        index = int.from_bytes(content[position : position + 2], "little")
        length = int.from_bytes(content[position + 8 : position + HEADER_BYTES], "little")
        if index == 0 and length < HEADER_BYTES:  # free space counts its header
            raise _damaged(position)
        position += length if index == 0 else HEADER_BYTES + (length + 7) // 8 * 8
    if position > end:
        raise _damaged(position)


def _damaged(position: int) -> Refusal:
    return Refusal(
        f"got damage at byte {position}, expected an HDF5 file that Keras wrote. It is cut off or "
        "damaged: download it again."
    )

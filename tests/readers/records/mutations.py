"""Seeded damage to record files: what a disk, a network or an attacker might do to them."""

import struct

import numpy as np

HOSTILE = (
    b"\xff" * 9 + b"\x01",  # the largest varint
    b"\xff" * 12,  # a varint that does not end
    b"\x0a\xff\xff\xff\xff\x07",  # a field of 2 GiB
    b"\x0b" * 200,  # nested groups
    struct.pack("<Q", 1 << 62),
    struct.pack("<q", -1),
    b"\x00" * 16,
)


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """Return `data` after one to three kinds of damage."""
    for _ in range(random.integers(1, 4)):
        data = _KINDS[random.integers(len(_KINDS))](data, random)
    return data


def _flip_bits(data: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(random.integers(1, 9) if changed else 0):
        changed[random.integers(len(changed))] ^= 1 << int(random.integers(8))
    return bytes(changed)


def _truncate(data: bytes, random: np.random.Generator) -> bytes:
    return data[: random.integers(len(data) + 1)]


def _splice(data: bytes, random: np.random.Generator) -> bytes:
    start, stop, at = sorted(int(i) for i in random.integers(len(data) + 1, size=3))
    return data[:at] + data[start:stop] + data[at:]


def _cut_out(data: bytes, random: np.random.Generator) -> bytes:
    start, stop = sorted(int(i) for i in random.integers(len(data) + 1, size=2))
    return data[:start] + data[stop:]


def _insert_hostile(data: bytes, random: np.random.Generator) -> bytes:
    at = int(random.integers(len(data) + 1))
    return data[:at] + HOSTILE[random.integers(len(HOSTILE))] + data[at:]


def _overwrite_hostile(data: bytes, random: np.random.Generator) -> bytes:
    at = int(random.integers(len(data) + 1))
    hostile = HOSTILE[random.integers(len(HOSTILE))]
    return data[:at] + hostile + data[at + len(hostile) :]


_KINDS = (_flip_bits, _truncate, _splice, _cut_out, _insert_hostile, _overwrite_hostile)

"""Seeded damage to files, what a disk or an attacker might do, and who reads them in a child."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.source_tree import ROOT

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


on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc")


def in_parts(num_cases: int, num_quick: int) -> pytest.MarkDecorator:
    """Parametrize a test with the first cases, and in slow tests with all, in four parts."""
    size = num_cases // 4
    parts = [range(at, at + size) for at in range(0, num_cases, size)]
    slow = [pytest.param(part, marks=pytest.mark.slow) for part in parts]
    return pytest.mark.parametrize("cases", [range(num_quick), *slow])


def run_in_a_child(program: str, module: str, folder: Path, *flags: str) -> list[int]:
    """Return the numbers that a program prints last; it has the module as `files`.

    A process of its own: a crash ends only that, and what earlier tests took hides no growth.
    """
    imports = f"import sys; from pathlib import Path; import {module} as files"
    done = subprocess.run(
        [sys.executable, *flags, "-c", f"{imports}; {program}", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        # An arena a thread reserves 64 MiB each, whatever is allocated in it.
        env={**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"},
        timeout=280,  # a hang, before pytest's own limit leaves the child behind
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [int(word) for word in done.stdout.splitlines()[-1].split()]


def peak_bytes() -> int:
    """Return the most address space this process had: memory asked for counts, used or not."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmPeak:")[2].split()[0]) * 1024

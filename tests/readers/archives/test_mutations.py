"""20,000 damaged archives of the named sets, a slice of them in `make test`."""

from pathlib import Path

import numpy as np
import pytest

from tests.readers.archives.damage import Case, make_case, write_files
from tests.readers.archives.mutated_archives import check, empty, read, summary, watch
from tests.readers.archives.original_sets import ORIGINALS, Original

NUM_CASES = 20_000
NUM_PARTS = 10
SLICE = 17  # one of each set
MAX_GROWTH_MB = 500
on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc")


def check_cases(cases: range) -> None:
    lines = watch(cases)
    others = [line for line in lines if line["outcome"] not in ("right", "error")]
    assert not others, others[:5]
    counts = summary(lines)
    assert counts["cases"] == len(cases)
    assert min(counts["right"], counts["error"]) >= len(cases) // 10
    assert counts["growth_mb"] < MAX_GROWTH_MB


@on_linux
def test_damaged_archives_are_read_right_or_refused_by_name():
    check_cases(range(SLICE))


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_damaged_archives_are_read_right_or_refused_by_name_in_bulk(part: int):
    size = NUM_CASES // NUM_PARTS
    check_cases(range(part * size, (part + 1) * size))


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda o: f"{o.name}-{o.split}-{o.reads}")
def test_undamaged_archive_is_read_alike_packed_and_unpacked(original: Original, tmp_path: Path):
    write_files(Case(number=-1, original=original, kind="none"), tmp_path)
    whole = read(original, tmp_path)
    check(original, whole, whole)
    unpacked = {file.name: file.members for file in original.files if file.folder is not None}
    if unpacked:
        empty(tmp_path)
        write_files(Case(number=-1, original=original, kind="none", unpacked=unpacked), tmp_path)
        found = read(original, tmp_path)
        assert all(np.array_equal(found[name], column) for name, column in whole.items())


@pytest.mark.slow
def test_cases_are_of_every_sort():
    cases = [make_case(number) for number in range(340)]
    kinds = {(case.original.name, case.original.reads, case.kind) for case in cases}
    assert len({kind for _, _, kind in kinds}) == 7
    assert len(kinds) > 60
    written = [tuple(case.changed.values()) for case in cases if case.changed]
    assert len(set(written)) > 0.9 * len(written)


BAD_CHILD = """
import os, time
from tests.readers.archives import mutated_archives as files
bad = [lambda: time.sleep(600), lambda: os._exit(3), lambda: files.np.empty(5 << 30, 'u1')]
real = files.write_files
files.write_files = lambda case, folder: (case.number < 0 or bad[case.number](), real(case, folder))
files.child(range({start}, {stop}))
"""


@on_linux
@pytest.mark.slow
def test_case_that_hangs_dies_or_asks_for_too_much_is_counted():
    outcomes = [str(line["outcome"]) for line in watch(range(3), program=BAD_CHILD, max_secs=30)]
    assert outcomes[0].startswith("hung for 30 s")
    assert outcomes[1].startswith("died, status 3")
    assert "MemoryError" in outcomes[2]

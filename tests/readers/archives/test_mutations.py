"""20,000 damaged archives of the named sets, a slice of them in `make test`."""

import numpy as np
import pytest

from tests.readers.archives.damage import Case, write_files
from tests.readers.archives.mutated_archives import check, empty, read
from tests.readers.archives.original_sets import ORIGINALS
from tests.readers.records.mutations import in_parts, on_linux, run_in_a_child

MAX_GROWTH_BYTES = 500 << 20


@on_linux
@in_parts(20_000, num_quick=len(ORIGINALS))
def test_damaged_archives_are_read_right_or_refused_by_name(cases, tmp_path):
    program = f"print(*files.run_cases({cases!r}, Path(sys.argv[1])))"
    module = "tests.readers.archives.mutated_archives"
    right, error, growth_bytes = run_in_a_child(program, module, tmp_path, "-W", "error")
    assert right + error == len(cases)
    assert min(right, error) >= len(cases) // 10
    assert growth_bytes < MAX_GROWTH_BYTES


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda o: f"{o.name}-{o.split}-{o.reads}")
def test_undamaged_archive_is_read_alike_packed_and_unpacked(original, tmp_path):
    write_files(Case(number=-1, original=original, kind="none"), tmp_path)
    whole = read(original, tmp_path)
    check(original, whole, whole)
    unpacked = {file.name: file.members for file in original.files if file.folder is not None}
    if unpacked:
        empty(tmp_path)
        write_files(Case(number=-1, original=original, kind="none", unpacked=unpacked), tmp_path)
        columns = read(original, tmp_path)
        assert all(np.array_equal(columns[name], column) for name, column in whole.items())

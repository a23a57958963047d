"""20,000 damaged archives of the named sets, a slice of them in `make test`: each is read right, or
refused by an error of ours that names the file. A case is one seed.
"""

import hashlib
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import readers
from penstock.readers import convert
from penstock.readers.records import RecordError
from tests.readers.archives.damage import Case, make_case, write_files
from tests.readers.archives.original_sets import ORIGINALS, Original
from tests.readers.convert.originals import convert_unchecked
from tests.readers.records.mutations import in_parts, on_linux, peak_bytes, run_in_a_child

OURS = (readers.ArchiveError, readers.DatasetNotFoundError, RecordError, convert.ConversionError)
LIMIT_BYTES = 4 << 30
MAX_GROWTH_BYTES = 500 << 20
# What a batch may hold, column by column: the label of each set below its number of classes, ...
_BELOW = {
    ("mnist", "label"): 10,
    ("fashion_mnist", "label"): 10,
    ("cifar10", "label"): 10,
    ("cifar100", "label"): 100,
    ("imdb", "label"): 2,
    ("sentiment", "label"): 2,
    ("flowers", "label"): 5,
    ("movielens", "user_id"): 6041,
    ("movielens", "movie_id"): 3953,
    ("movielens", "age_id"): 7,
    ("movielens", "job_id"): 21,
    ("conll05", "mark_data"): 2,
}


def read(original: Original, folder: Path) -> dict[str, np.ndarray]:
    """Return all that is read of a set, batches joined; what `convert` makes as its digest."""
    if original.reads == "convert":
        return {"made": np.frombuffer(_convert(original, folder), np.uint8)}
    reader = readers.dataset(original.name, original.split, 16, dataset_dir=folder, num_workers=1)
    batches = list(reader())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _convert(original: Original, folder: Path) -> bytes:
    options = {"num_validation": 1} if original.name == "flowers" else {}
    made = convert_unchecked(original.name, folder, **options)
    return hashlib.sha256(b"".join(path.read_bytes() for path in made)).digest()


def check(original: Original, columns: dict[str, np.ndarray], whole: dict[str, np.ndarray]) -> None:
    """Check that what was read has the columns, kinds, shapes and ranges of the set."""
    assert list(columns) == list(whole)
    assert len({len(column) for column in columns.values()}) == 1 or original.reads == "convert"
    for name, column in columns.items():
        assert column.dtype == whole[name].dtype
        assert column.shape[1:] == whole[name].shape[1:]
        assert np.isfinite(column).all()
        is_signed = column.dtype.kind == "f"
        assert is_signed or column.min(initial=0) >= 0
        assert column.max(initial=0) < _BELOW.get((original.name, name), 2**31)


def outcome(case: Case, folder: Path, wholes: list[dict[str, np.ndarray]]) -> str:
    """Return what came of a case: `right`, `error` of ours, or what should not have been."""
    whole = wholes[case.number % len(ORIGINALS)]
    try:
        write_files(case, folder)
        columns = read(case.original, folder)
    except OURS as error:
        return "error" if f"{folder}" in str(error) else f"unnamed: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    try:
        check(case.original, columns, whole)
        if case.is_checksummed:
            assert all(np.array_equal(columns[name], whole[name]) for name in whole)
    except AssertionError as error:
        return f"wrong data: {error}"[:300]
    return "right"


def run_cases(cases: range, folder: Path) -> tuple[int, int, int]:
    """Run cases under the limit; return how many were right, how many an error, and the growth.

    Growth is that of this process in bytes. Each case is named on stderr before it begins: who
    hangs or dies is the last there.
    """
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    wholes = []
    for original in ORIGINALS:
        write_files(Case(number=-1, original=original, kind="none"), folder)
        wholes.append(read(original, folder))
        empty(folder)
    before = peak_bytes()
    outcomes: dict[str, list[int]] = {"right": [], "error": []}
    for number in cases:
        print(f"case {number}", file=sys.stderr, flush=True)
        outcomes.setdefault(outcome(make_case(number), folder, wholes), []).append(number)
        empty(folder)
    right, error = outcomes.pop("right"), outcomes.pop("error")
    assert not outcomes, outcomes
    return len(right), len(error), peak_bytes() - before


def empty(folder: Path) -> None:
    """Remove all that is in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@on_linux
@in_parts(20_000, num_quick=len(ORIGINALS))
def test_damaged_archives_are_read_right_or_refused_by_name(cases, tmp_path):
    program = f"print(*files.run_cases({cases!r}, Path(sys.argv[1])))"
    module = "tests.readers.archives.test_mutated_archives"
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

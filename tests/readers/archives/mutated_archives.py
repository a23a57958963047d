"""Damaged archives of every named set: read right, or refused by an error of ours naming the file.

`python -m tests.readers.archives.mutated_archives --count 20000` reads so many in a child process
under a limit of 4 GB, and prints what came of them. A case is one seed: `--first 17 --count 1`.
"""

import argparse
import hashlib
import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock import readers
from penstock.readers import convert
from penstock.readers.records import RecordError
from tests.readers.archives.damage import Case, make_case, write_files
from tests.readers.archives.original_sets import ORIGINALS, Original
from tests.readers.records.mutated_files import peak_bytes
from tests.source_tree import ROOT

OURS = (readers.ArchiveError, readers.DatasetNotFoundError, RecordError, convert.ConversionError)
LIMIT_BYTES = 4 << 30
MAX_SECS = 120  # also to start, on a machine with much to do
PROGRAM = "from tests.readers.archives.mutated_archives import child; child(range({start}, {stop}))"
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
    reader = readers.dataset(original.name, original.split, 4, dataset_dir=folder, num_workers=1)
    batches = list(reader())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _convert(original: Original, folder: Path) -> bytes:
    if original.name == "mnist":
        sources = {name: s.at_mirror(None, is_checked=False) for name, s in convert.MNIST.items()}
        made = convert.convert_mnist(folder, sources=sources)
    elif original.name == "cifar10":
        source = convert.CIFAR10.at_mirror(None, is_checked=False)
        made = convert.convert_cifar10(folder, source=source)
    else:
        source = convert.FLOWERS.at_mirror(None, is_checked=False)
        made = convert.convert_flowers(folder, source=source, num_validation=1)
    return hashlib.sha256(b"".join(path.read_bytes() for path in made)).digest()


def check(original: Original, found: dict[str, np.ndarray], whole: dict[str, np.ndarray]) -> None:
    """Check that what was read has the columns, kinds, shapes and ranges of the set."""
    assert list(found) == list(whole)
    assert len({len(column) for column in found.values()}) == 1 or original.reads == "convert"
    for name, column in found.items():
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
        found = read(case.original, folder)
    except OURS as error:
        return "error" if f"{folder}" in str(error) else f"unnamed: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    try:
        check(case.original, found, whole)
        if case.is_checksummed:
            assert all(np.array_equal(found[name], whole[name]) for name in whole)
    except AssertionError as error:
        return f"wrong data: {error}"[:300]
    return "right"


def run_cases(cases: range, folder: Path) -> Iterator[dict[str, object]]:
    """Run cases; yield a line for each, then the growth of this process in bytes."""
    wholes = []
    for original in ORIGINALS:
        write_files(Case(number=-1, original=original, kind="none"), folder)
        wholes.append(read(original, folder))
        empty(folder)
    before = peak_bytes()
    for number in cases:
        yield {"case": number, "begins": True}
        start = time.perf_counter()
        case = make_case(number)
        result = outcome(case, folder, wholes)
        empty(folder)
        seconds = time.perf_counter() - start
        yield {
            "case": number,
            "set": f"{case.original.name} ({case.original.reads})",
            "kind": case.kind,
            "outcome": result,
            "seconds": round(seconds, 3),
            "growth": peak_bytes() - before,
        }


def empty(folder: Path) -> None:
    """Remove all that is in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def child(cases: range) -> None:
    """Run cases under the limit, a line of JSON each on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        for line in run_cases(cases, Path(folder)):
            print(json.dumps(line), flush=True)


def watch(
    cases: range, *, max_secs: float = MAX_SECS, program: str = PROGRAM
) -> list[dict[str, object]]:
    """Run cases in child processes, a fresh one after each that hangs or dies; return the lines."""
    lines: list[dict[str, object]] = []
    first = cases.start
    while first < cases.stop:
        done, last = _watch_child(range(first, cases.stop), max_secs, program)
        lines += done
        for line in done:
            if line["outcome"] not in ("right", "error"):
                print(json.dumps(line), file=sys.stderr, flush=True)
        if last is None:
            break
        print(f"case {last[0]} {last[1]}", file=sys.stderr, flush=True)
        lines.append({"case": last[0], "set": "?", "kind": "?", "outcome": last[1], "growth": 0})
        first = last[0] + 1
    return lines


def _watch_child(
    cases: range, max_secs: float, program: str
) -> tuple[list[dict[str, object]], tuple[int, str] | None]:
    """Return the lines of one child, and the case that it did not outlive with what happened."""
    # An arena a thread reserves 64 MiB each, whatever is allocated in it.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"}
    program = program.format(start=cases.start, stop=cases.stop)
    command = [sys.executable, "-W", "error", "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    assert process.stdout is not None
    arriving: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_forward, args=(process.stdout, arriving), daemon=True)
    reader.start()
    lines: list[dict[str, object]] = []
    current, what = cases.start, "died"
    try:
        while text := arriving.get(timeout=max_secs):
            line = json.loads(text)
            current = line["case"]
            if "outcome" in line:
                lines.append(line)
    except queue.Empty:
        what = f"hung for {max_secs} s"
    finally:
        process.kill()
        status = process.wait()
        reader.join()
        process.stdout.close()
    is_done = len(lines) == len(cases)
    return lines, None if is_done else (current, f"{what}, status {status}")


def _forward(stream: Iterator[str], arriving: "queue.Queue[str]") -> None:
    for text in stream:
        arriving.put(text)
    arriving.put("")


def summary(lines: list[dict[str, object]]) -> dict[str, object]:
    """Return counts, the largest growth and the longest case."""
    counts = Counter(
        line["outcome"] if line["outcome"] in ("right", "error") else "other" for line in lines
    )
    return {
        "cases": len(lines),
        **{name: counts[name] for name in ("right", "error", "other")},
        "growth_mb": max(int(str(line["growth"])) for line in lines) >> 20,
        "longest_secs": max(float(str(line.get("seconds", 0))) for line in lines),
    }


def main(arguments: list[str]) -> int:
    """Print what came of the cases, set by set and kind by kind; fail on any other outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    flags = parser.parse_args(arguments)
    lines = watch(range(flags.first, flags.first + flags.count))
    for key in ("set", "kind"):
        rows = {name: [x for x in lines if x[key] == name] for name in {str(x[key]) for x in lines}}
        for name in sorted(rows):
            print(f"{name:32} {summary(rows[name])}")
    others = [line for line in lines if line["outcome"] not in ("right", "error")]
    for line in others[:40]:
        print(json.dumps(line))
    print(summary(lines))
    return int(bool(others))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

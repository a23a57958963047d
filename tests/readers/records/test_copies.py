"""The copies of compressed files in the cache: bounded, seen, cleared, and kept while in use."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.readers.records import RecordError, RecordFiles, RecordFormat
from penstock.readers.records.cache import evict, list_copies, remove_copy
from penstock.readers.records.framing import TFRECORD
from tests.source_tree import ROOT

PLAIN = TFRECORD.frame(b"x" * 1000)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_of(path: Path, data: bytes = gzip.compress(PLAIN)) -> RecordFiles:
    if not path.exists():
        path.write_bytes(data)
    return RecordFiles([path], RecordFormat())


def sources(copies: list) -> list[str]:
    return [Path(copy.source).name for copy in copies]


@pytest.mark.parametrize("content", [b"no record " * 1000, b"", PLAIN[:10], PLAIN[:-1]])
def test_compressed_file_without_a_record_leaves_no_copy(content, cache, tmp_path):
    files = files_of(tmp_path / "a.gz", gzip.compress(content))
    assert len(files) == 0
    assert len(files.damages) == bool(content)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_file_that_does_not_begin_with_a_record_is_not_decompressed_to_its_end(cache, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    files = RecordFiles([path], RecordFormat(max_plain_bytes=8 << 20))
    (damage,) = files.damages
    assert isinstance(damage, RecordError)
    assert str(damage).startswith(f"'{tmp_path / 'a.gz'}', record 0 at byte 0: TFRecord length")


def test_least_recently_used_copies_go_first_and_those_in_use_stay(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_MAX_BYTES", str(2 * len(PLAIN)))
    used = files_of(tmp_path / "used.gz")
    for name in ("a.gz", "b.gz"):
        files_of(tmp_path / name)
    assert sources(list_copies(cache)) == ["used.gz", "b.gz"]
    (copy, _) = list_copies(cache)
    os.utime(copy.path, ns=(0, copy.path.stat().st_mtime_ns))
    files_of(tmp_path / "c.gz")
    assert sources(list_copies(cache)) == ["used.gz", "c.gz"]
    assert list(used.read([0])) == [b"x" * 1000]
    used.close()
    del used
    assert sorted(sources(evict(cache, 0))) == ["c.gz", "used.gz"]


def test_copy_whose_source_has_changed_goes_before_older_ones(cache, tmp_path):
    for name in ("old.gz", "changed.gz"):
        files_of(tmp_path / name)
    (tmp_path / "changed.gz").unlink()
    assert [copy.is_stale for copy in list_copies(cache)] == [False, True]
    assert sources(evict(cache, len(PLAIN))) == ["changed.gz"]


def test_copy_removed_while_it_is_read_is_made_again(cache, tmp_path):
    files = files_of(tmp_path / "a.gz")
    (copy,) = list_copies(cache)
    remove_copy(copy.path)
    assert list(files.read([0])) == [b"x" * 1000]
    files.close()


def test_copy_in_use_by_another_process_stays_until_that_is_killed(cache, tmp_path):
    files_of(tmp_path / "a.gz")
    program = (
        "import sys; from penstock.readers.records import RecordFiles, RecordFormat;"
        "files = RecordFiles([sys.argv[1]], RecordFormat()); print(len(files), flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.gz")]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout.readline() == b"1\n"
        assert evict(cache, 0) == []
        reader.kill()
    assert sources(evict(cache, 0)) == ["a.gz"]
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_bound_that_is_no_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_MAX_BYTES", "10G")
    with pytest.raises(ValueError, match="got '10G', expected a number of bytes >= 0"):
        files_of(tmp_path / "a.gz")

"""The copies of compressed files in the cache: seen, cleared, and made again."""

import gzip
import os
from pathlib import Path

import pytest

from penstock.readers.records import RecordError, RecordFiles, RecordFormat
from penstock.readers.records import cache as copies
from penstock.readers.records.cache import clear_copies, list_copies, remove_copy
from penstock.readers.records.framing import TFRECORD

PLAIN = TFRECORD.frame(b"x" * 1000)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
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


def test_copies_stay_and_their_folder_is_said_once(cache, tmp_path, caplog):
    for name in ("b.gz", "a.gz"):
        files_of(tmp_path / name)
        files_of(tmp_path / name)
        (line,) = caplog.messages
        assert line.startswith(f"1 compressed record files were decompressed to '{cache}', and")
        caplog.clear()
    (tmp_path / "b.gz").unlink()
    assert [copy.is_stale for copy in list_copies(cache)] == [False, True]
    assert sources(clear_copies(cache)) == ["a.gz", "b.gz"]
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_copy_removed_while_it_is_read_is_made_again(cache, tmp_path):
    files = files_of(tmp_path / "a.gz")
    (copy,) = list_copies(cache)
    remove_copy(copy.path)
    assert list(files.read([0])) == [b"x" * 1000]
    files.close()


@pytest.mark.parametrize("rest", [b"", bytes(len(PLAIN)), PLAIN[:-1]])
def test_copy_that_lost_what_it_held_is_made_again(rest, cache, tmp_path):
    files_of(tmp_path / "a.gz")
    (copy,) = list_copies(cache)
    copy.path.write_bytes(rest)
    files = files_of(tmp_path / "a.gz")
    assert not files.damages
    assert list(files.read([0])) == [b"x" * 1000]


def test_new_copy_of_a_file_with_a_damaged_record_is_made_once(cache, tmp_path, monkeypatch):
    num_made, write = 0, copies._write_plain

    def count(*arguments):
        nonlocal num_made
        num_made += 1
        return write(*arguments)

    monkeypatch.setattr(copies, "_write_plain", count)
    files = files_of(tmp_path / "a.gz", gzip.compress(PLAIN + bytes(len(PLAIN))))
    assert (len(files), len(files.damages), num_made) == (1, 1, 1)


def test_copy_is_on_the_disk_before_it_has_its_name(cache, tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def record(descriptor):
        fsync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, list_copies(cache)))

    monkeypatch.setattr(os, "fsync", record)
    files_of(tmp_path / "a.gz")
    (copy,) = list_copies(cache)
    assert (copy.path.stat().st_ino, []) in synced


def test_copy_that_another_process_is_writing_is_left_alone(cache, tmp_path, monkeypatch):
    path, write = tmp_path / "a.gz", copies._write_plain

    def write_beside_another(*arguments):
        monkeypatch.setattr(copies, "_write_plain", write)
        assert len(files_of(path)) == 1
        return write(*arguments)

    monkeypatch.setattr(copies, "_write_plain", write_beside_another)
    assert len(files_of(path)) == 1
    assert sources(list_copies(cache)) == ["a.gz"]
    # A copy of the file as it was goes, with all that is beside it.
    path.write_bytes(gzip.compress(PLAIN * 2))
    assert len(files_of(path)) == 2
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 2

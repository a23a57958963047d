"""Compressed files: read as plain ones, whose copies in the cache are seen, cleared, made again."""

import gzip
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.readers.records import RecordError, RecordFiles, RecordFormat
from penstock.readers.records import cache as copies
from penstock.readers.records.cache import clear_copies, list_copies, remove_copy
from penstock.readers.records.framing import TFRECORD, FramingError
from tests.held import open_files
from tests.readers.published import read_records, write_records

PAYLOADS = [bytes([number]) * (number * 1000) for number in range(50)]
PLAIN = b"".join(map(TFRECORD.frame, PAYLOADS))
FRAME = TFRECORD.frame(b"x" * 1000)
COMPRESS = {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}
DECOMPRESS = {"": bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path):
    """Return where each test writes its file."""
    return tmp_path / "a.gz"


def files_of(path: Path, data: bytes = gzip.compress(FRAME), **options: object) -> RecordFiles:
    """Return the records of a file, which is written where it is not there."""
    if not path.exists():
        path.write_bytes(data)
    return RecordFiles([path], RecordFormat(**options))


def find_files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def read_all(files: RecordFiles) -> list:
    try:
        return list(files.read(range(len(files))))
    finally:
        files.close()


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("declared", ["auto", "as it is"])
def test_compressed_file_is_read_at_random(compression, declared, path):
    form = {"compression": compression if declared == "as it is" else "auto"}
    files = files_of(path, COMPRESS[compression](PLAIN), **form)
    assert list(files.read([40, 3, 4, 0])) == [PAYLOADS[i] for i in (40, 3, 4, 0)]
    files.close()


@pytest.mark.parametrize("compression", COMPRESS)
def test_writer_compresses_as_declared(compression, path):
    write_records(path, PAYLOADS, compression=compression)
    assert DECOMPRESS[compression](path.read_bytes()) == PLAIN


def test_streams_joined_end_to_end_are_one_file(path):
    data = gzip.compress(PLAIN) + gzip.compress(b"") + gzip.compress(PLAIN)
    assert read_all(files_of(path, data)) == PAYLOADS * 2


def test_copy_is_made_once_and_anew_when_the_file_changes(path, cache):
    read_all(files_of(path))
    (copy,) = list_copies(cache)
    made = copy.path.stat().st_mtime_ns
    read_all(files_of(path))
    assert copy.path.stat().st_mtime_ns == made
    path.write_bytes(gzip.compress(FRAME * 2))
    assert read_all(files_of(path)) == [b"x" * 1000] * 2
    # The copy of the file as it was goes, with all that is beside it.
    assert not copy.path.exists()
    assert len(find_files(cache)) == 2


def test_truncated_stream_gives_what_came_before_and_the_damage(path, cache):
    data = gzip.compress(PLAIN, compresslevel=0)
    files = files_of(path, data[: len(data) // 2])
    assert 0 < len(files) < len(PAYLOADS)
    assert read_all(files) == PAYLOADS[: len(files)]
    assert "GZIP stream got the end of the file, expected a whole stream" in str(files.damages[0])
    assert files.damages[0].path == str(path)
    assert find_files(cache) == []


def test_stream_larger_than_the_bound_is_an_error_and_leaves_no_copy(path, cache):
    data = gzip.compress(bytes(10_000_000))
    with pytest.raises(FramingError, match="got more than 1000000 bytes, expected at most 1000000"):
        files_of(path, data, max_plain_bytes=1_000_000, compression="GZIP")
    assert find_files(cache) == []


def test_foreign_file_is_an_error_at_byte_0(path):
    files = files_of(path, b"This is no record file, but some text.")
    assert len(files) == 0
    assert isinstance(files.damages[0], RecordError)
    assert "record 0 at byte 0: TFRecord length got checksum" in str(files.damages[0])


def test_empty_file_has_no_records(path):
    files = files_of(path, b"")
    assert (len(files), files.damages) == (0, [])


def test_unknown_compression_is_an_error():
    with pytest.raises(
        ValueError, match="compression got 'gzip', expected one of 'auto', '', 'GZIP',"
    ):
        RecordFormat(compression="gzip")


def test_no_descriptor_stays_open(tmp_path, monkeypatch):
    before = open_files()
    packed = gzip.compress(PLAIN)
    for number, data in enumerate((PLAIN, packed, packed[:-9], b"foreign" * 9)):
        read_all(files_of(tmp_path / str(number), data))
    assert open_files() - before == set()

    def fail(*paths: object) -> None:
        raise OSError("no room")

    # Nor of a copy that gets no name.
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        files_of(tmp_path / "a.gz")
    assert open_files() - before == set()


def test_threads_read_a_damaged_file_at_once(path):
    packed = gzip.compress(PLAIN)
    files = files_of(path, packed[: len(packed) // 2])
    assert files.damages
    for _ in range(20):
        # None has it open yet, and what came before the damage is written by whoever opens it.
        copy = files.reopen()
        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(lambda i, of=copy: list(of.read([i])), [0, 1, 2, 0]))
        assert parts == [[PAYLOADS[i]] for i in (0, 1, 2, 0)]
        copy.close()


def test_plain_file_is_read_without_the_cache_folder(path, tmp_path, monkeypatch):
    """As in a container whose home folder is another user's."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / ("x" * 300)))  # too long for a name
    assert read_records([write_records(path, [b"abc"])]) == [b"abc"]


@pytest.mark.parametrize("content", [b"no record " * 1000, b"", FRAME[:10], FRAME[:-1]])
def test_compressed_file_without_a_record_leaves_no_copy(content, cache, path):
    files = files_of(path, gzip.compress(content))
    assert len(files) == 0
    assert len(files.damages) == bool(content)
    assert find_files(cache) == []


def test_file_that_does_not_begin_with_a_record_is_not_decompressed_to_its_end(path):
    files = files_of(path, gzip.compress(bytes(64 << 20)), max_plain_bytes=8 << 20)
    (damage,) = files.damages
    assert isinstance(damage, RecordError)
    assert str(damage).startswith(f"'{path}', record 0 at byte 0: TFRecord length")


def test_copies_stay_and_their_folder_is_said_once(cache, tmp_path, caplog):
    for name in ("b.gz", "a.gz"):
        files_of(tmp_path / name)
        files_of(tmp_path / name)
        (line,) = caplog.messages
        assert line.startswith(f"1 compressed record files were decompressed to '{cache}', and")
        caplog.clear()
    (tmp_path / "b.gz").unlink()
    assert [copy.is_stale for copy in list_copies(cache)] == [False, True]
    assert [Path(copy.source).name for copy in clear_copies(cache)] == ["a.gz", "b.gz"]
    assert find_files(cache) == []


@pytest.mark.parametrize("rest", [None, b"", bytes(len(FRAME)), FRAME[:-1]])
def test_copy_that_is_removed_or_lost_what_it_held_is_made_again(rest, cache, path):
    files = files_of(path)
    (copy,) = list_copies(cache)
    if rest is None:  # while it is read
        remove_copy(copy.path)
    else:
        copy.path.write_bytes(rest)
        files = files_of(path)
    assert not files.damages
    assert read_all(files) == [b"x" * 1000]


def test_new_copy_of_a_file_with_a_damaged_record_is_made_once(path, monkeypatch):
    num_made, write = 0, copies._write_plain

    def count(*arguments):
        nonlocal num_made
        num_made += 1
        return write(*arguments)

    monkeypatch.setattr(copies, "_write_plain", count)
    files = files_of(path, gzip.compress(FRAME + bytes(len(FRAME))))
    assert (len(files), len(files.damages), num_made) == (1, 1, 1)


def test_copy_is_on_the_disk_before_it_has_its_name(cache, path, monkeypatch):
    synced, fsync = [], os.fsync

    def record(descriptor):
        fsync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, list_copies(cache)))

    monkeypatch.setattr(os, "fsync", record)
    files_of(path)
    (copy,) = list_copies(cache)
    assert (copy.path.stat().st_ino, []) in synced


def test_copy_that_another_process_is_writing_is_left_alone(cache, path, monkeypatch):
    write = copies._write_plain

    def write_beside_another(*arguments):
        monkeypatch.setattr(copies, "_write_plain", write)
        assert len(files_of(path)) == 1
        return write(*arguments)

    monkeypatch.setattr(copies, "_write_plain", write_beside_another)
    assert len(files_of(path)) == 1
    assert len(list_copies(cache)) == 1

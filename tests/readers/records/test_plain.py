import gzip
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.readers.records import RecordError, RecordFiles, RecordFormat, RecordWriter
from penstock.readers.records.framing import TFRECORD, FramingError
from tests.held import open_files
from tests.readers.published import read_records

PAYLOADS = [bytes([number]) * (number * 1000) for number in range(50)]
PLAIN = b"".join(map(TFRECORD.frame, PAYLOADS))
COMPRESS = {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}


def files_of(data: bytes, folder: Path, **options: object) -> RecordFiles:
    path = folder / "a.tfrecord"
    path.write_bytes(data)
    form = RecordFormat(cache_dir=str(folder / "cache"), **options)
    return RecordFiles([path], form)


def read_all(files: RecordFiles) -> list:
    try:
        return list(files.read(range(len(files))))
    finally:
        files.close()


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("declared", ["auto", "as it is"])
def test_compressed_file_is_read_at_random(compression, declared, tmp_path):
    form = {"compression": compression if declared == "as it is" else "auto"}
    files = files_of(COMPRESS[compression](PLAIN), tmp_path, **form)
    assert list(files.read([40, 3, 4, 0])) == [PAYLOADS[i] for i in (40, 3, 4, 0)]
    files.close()


@pytest.mark.parametrize("compression", COMPRESS)
def test_writer_compresses_as_declared(compression, tmp_path):
    path = tmp_path / "b.tfrecord"
    with RecordWriter(path, compression=compression) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    assert read_records([path], cache_dir=str(tmp_path), compression=compression) == PAYLOADS


def test_streams_joined_end_to_end_are_one_file(tmp_path):
    data = gzip.compress(PLAIN) + gzip.compress(b"") + gzip.compress(PLAIN)
    assert read_all(files_of(data, tmp_path)) == PAYLOADS * 2


def test_copy_is_made_once_and_anew_when_the_file_changes(tmp_path):
    read_all(files_of(gzip.compress(PLAIN), tmp_path))
    (copy,) = (tmp_path / "cache" / "plain").glob("[0-9a-f]*")
    made = copy.stat().st_mtime_ns
    read_all(RecordFiles([tmp_path / "a.tfrecord"], RecordFormat(cache_dir=f"{tmp_path}/cache")))
    assert copy.stat().st_mtime_ns == made
    assert read_all(files_of(gzip.compress(PLAIN[:16]), tmp_path)) == PAYLOADS[:1]
    assert not copy.exists()


def test_truncated_stream_gives_what_came_before_and_the_damage(tmp_path):
    data = gzip.compress(PLAIN, compresslevel=0)
    files = files_of(data[: len(data) // 2], tmp_path)
    assert 0 < len(files) < len(PAYLOADS)
    assert read_all(files) == PAYLOADS[: len(files)]
    assert "GZIP stream got the end of the file, expected a whole stream" in str(files.damages[0])
    assert files.damages[0].path == str(tmp_path / "a.tfrecord")
    assert list((tmp_path / "cache" / "plain").iterdir()) == []


def test_stream_larger_than_the_bound_is_an_error_and_leaves_no_copy(tmp_path):
    data = gzip.compress(bytes(10_000_000))
    with pytest.raises(FramingError, match="got more than 1000000 bytes, expected at most 1000000"):
        files_of(data, tmp_path, max_plain_bytes=1_000_000, compression="GZIP")
    assert list((tmp_path / "cache" / "plain").iterdir()) == []


def test_foreign_file_is_an_error_at_byte_0(tmp_path):
    files = files_of(b"This is no record file, but some text.", tmp_path)
    assert len(files) == 0
    assert isinstance(files.damages[0], RecordError)
    assert "record 0 at byte 0: TFRecord length got checksum" in str(files.damages[0])


def test_empty_file_has_no_records(tmp_path):
    files = files_of(b"", tmp_path)
    assert (len(files), files.damages) == (0, [])


def test_unknown_compression_is_an_error():
    with pytest.raises(
        ValueError, match="compression got 'gzip', expected one of 'auto', '', 'GZIP',"
    ):
        RecordFormat(compression="gzip")


def test_no_descriptor_stays_open(tmp_path):
    before = open_files()
    for data in (PLAIN, gzip.compress(PLAIN), gzip.compress(PLAIN)[:-9], b"foreign" * 9):
        read_all(files_of(data, tmp_path))
    assert open_files() - before == set()


def test_no_descriptor_stays_open_of_a_copy_that_gets_no_name(tmp_path, monkeypatch):
    before = open_files()

    def fail(*paths: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        files_of(gzip.compress(PLAIN), tmp_path)
    assert open_files() - before == set()


def test_threads_read_a_damaged_file_at_once(tmp_path):
    packed = gzip.compress(PLAIN)
    files = files_of(packed[: len(packed) // 2], tmp_path)
    assert files.damages
    for _ in range(20):
        # None has it open yet, and what came before the damage is written by whoever opens it.
        copy = files.reopen()
        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(lambda i, of=copy: list(of.read([i])), [0, 1, 2, 0]))
        assert parts == [[PAYLOADS[i]] for i in (0, 1, 2, 0)]
        copy.close()


def test_plain_file_is_read_without_the_cache_folder(tmp_path, monkeypatch):
    """As in a container whose home folder is another user's."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / ("x" * 300)))  # too long for a name
    path = tmp_path / "a.tfrecord"
    path.write_bytes(TFRECORD.frame(b"abc"))
    assert read_records([path]) == [b"abc"]

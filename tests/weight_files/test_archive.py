"""Zip archives that claim more than they hold."""

import io
import zipfile
from pathlib import Path

import pytest

from penstock._weight_files._file import Archive, WeightFileError


def write(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_entries_come_back_each_once(tmp_path):
    with Archive(write(tmp_path / "a.zip", {"a": b"x" * 100, "b": b""})) as archive:
        assert archive.namelist() == ["a", "b"]
        assert archive.read_entry("a") == b"x" * 100
        assert archive.read_entry("b") == b""


def test_more_than_the_archive_holds_is_never_read(tmp_path):
    path = write(tmp_path / "a.zip", {"a": b"x" * 1000})
    assert path.stat().st_size < 2000
    with Archive(path) as archive:
        archive.read_entry("a")
        with pytest.raises(
            WeightFileError, match=r"got entries larger than the archive of \d+ bytes"
        ):
            archive.read_entry("a")


def test_compressed_entry_is_refused(tmp_path):
    path = write(tmp_path / "bomb.zip", {"zeros": bytes(10**6)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2000
    with (
        Archive(path) as archive,
        pytest.raises(WeightFileError, match="got a compressed entry 'zeros'"),
    ):
        archive.read_entry("zeros")


def test_entries_within_each_other_are_refused(tmp_path):
    # Entry `outer` holds the whole record of `inner`, which the table of entries lists too.
    record = io.BytesIO()
    with zipfile.ZipFile(record, "w") as archive:
        archive.writestr("inner", b"x" * 1000)
        inner = archive.getinfo("inner")
        end = record.tell()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("outer", record.getvalue()[:end])
        inner.header_offset = 30 + len("outer")
        archive.filelist.append(inner)
        archive.NameToInfo["inner"] = inner
    with Archive(tmp_path / "a.zip") as archive:
        assert len(archive.read_entry("outer")) > 1000
        with pytest.raises(
            WeightFileError, match=r"Entries overlap or are damaged|damaged entry 'inner'"
        ):
            archive.read_entry("inner")


def test_entry_whose_bytes_changed_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", {"a": b"x" * 100})
    path.write_bytes(path.read_bytes().replace(b"xxx", b"xyx", 1))
    with (
        Archive(path) as archive,
        pytest.raises(WeightFileError, match=r"got a damaged entry 'a' .*CRC"),
    ):
        archive.read_entry("a")


def test_archive_that_is_cut_off_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", {"a": b"x" * 100})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(
        WeightFileError, match=r"got a zip archive of \d+ bytes without its table of entr"
    ):
        Archive(path)

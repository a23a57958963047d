"""Zip archives that claim more than they hold."""

import io
import zipfile

import pytest

from penstock._weight_files._file import Archive, WeightFileError

ENTRIES = {"a": b"x" * 1000, "b": b""}


def write(entries: dict[str, bytes] = ENTRIES, compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def overlap() -> bytes:
    """Return an archive whose entry `a` holds the whole record of `b`, which is listed too."""
    record, file = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(record, "w") as archive:
        archive.writestr("b", b"x" * 1000)
        inner, end = archive.getinfo("b"), record.tell()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", record.getvalue()[:end])
        inner.header_offset = 30 + len("a")
        archive.filelist.append(inner)
        archive.NameToInfo["b"] = inner
    return file.getvalue()


def test_entries_come_back_each_once(tmp_path):
    (tmp_path / "a.zip").write_bytes(write())
    with Archive(tmp_path / "a.zip") as archive:
        assert {name: archive.read_entry(name) for name in archive.namelist()} == ENTRIES
        with pytest.raises(WeightFileError, match=r"got entries larger than the archive of \d+ by"):
            archive.read_entry("a")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (write({"a": bytes(10**6)}, zipfile.ZIP_DEFLATED), "got a compressed entry 'a'"),
        (overlap(), "got entries larger than the archive|damaged entry '[ab]'"),
        (write().replace(b"xxx", b"xyx", 1), "got a damaged entry 'a' .*CRC"),
        (write()[:-10], r"got a zip archive of \d+ bytes without its table of entries"),
    ],
    ids=["compressed", "overlapping", "changed", "cut off"],
)
def test_archive_that_is_damaged_or_a_bomb_is_refused(tmp_path, content, text):
    assert len(content) < 3000
    (tmp_path / "a.zip").write_bytes(content)

    def read_all():
        with Archive(tmp_path / "a.zip") as archive:
            return [archive.read_entry(name) for name in ("a", "b")]

    with pytest.raises(WeightFileError, match=text):
        read_all()

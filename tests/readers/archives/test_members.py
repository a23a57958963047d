"""The layer that reads the archives of data sets: within bounds, whole, or refused by name."""

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from penstock.readers import ArchiveError
from penstock.readers._archives import Limits, read_by_name, read_files, unpack
from penstock.readers._errors import UnsafeArchiveError
from tests.readers.convert.originals import plain_tar, write_tar

LIMITS = Limits(file_bytes=1 << 20, total_bytes=1 << 24, num_entries=50)


def read(path: Path) -> dict[str, bytes]:
    return {name: piece.content for name, piece in read_files(path, lambda name: True, LIMITS)}


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.mode = 0o4777
    return info


def test_files_are_unpacked_below_the_folder_without_their_modes(tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("photos", tarfile.DIRTYPE))
        info = member("photos/./a.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    unpack(archive, tmp_path / "out", LIMITS)
    unpacked = tmp_path / "out" / "photos" / "a.jpg"
    assert unpacked.read_bytes() == b"abc"
    assert unpacked.stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize(
    "bad",
    [
        member("../escaped"),
        member("photos/../../escaped"),
        member("/tmp/escaped"),
        member("..\\escaped"),
        member("link", tarfile.SYMTYPE, "/etc"),
        member("link", tarfile.LNKTYPE, "../../escaped"),
        member("fifo", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
        member("a/" * 40 + "a"),
        member("a/" + "a" * 300),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_member_that_would_escape_is_refused_before_anything_is_written(bad, tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("good"))
        tar.addfile(bad)
    with pytest.raises(UnsafeArchiveError, match="expected regular files below the folder"):
        unpack(archive, tmp_path / "out", LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_archive_that_would_fill_the_disk_is_refused(tmp_path):
    archive = write_tar(tmp_path / "a.tar.gz", {"zeros": bytes(100_000)})
    few = Limits(file_bytes=999, total_bytes=5000)
    with pytest.raises(ArchiveError, match="got more than 5000 bytes unpacked, expected at most"):
        unpack(archive, tmp_path / "out", few)


@pytest.mark.parametrize("size", [0, 20, 100, 2000])
def test_truncated_archive_is_an_error(size, tmp_path):
    archive = write_tar(tmp_path / "a.tar.gz", {"noise": bytes(range(256)) * 400})
    data = archive.read_bytes()
    archive.write_bytes(data[: min(size, len(data) - 30)])
    with pytest.raises(ArchiveError, match="expected a whole tar archive"):
        unpack(archive, tmp_path / "out", LIMITS)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_form_of_tar_gives_its_files(tmp_path, form, pack):
    long = "/".join(["folder" * 8] * 4) + "/a.txt" if form != tarfile.USTAR_FORMAT else "b.txt"
    members = {"./größe.txt": b"x" * 700, long: b"", "c": bytes(512)}
    (tmp_path / "a.tar").write_bytes(pack(plain_tar(members, form)))
    expected = {name.removeprefix("./"): data for name, data in members.items()}
    assert read(tmp_path / "a.tar") == expected


def test_zip_and_folder_give_their_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/b.txt", b"x" * 700)
        archive.writestr("m/a.txt", b"")
        archive.mkdir("m/n")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path)
    expected = {"m/b.txt": b"x" * 700, "m/a.txt": b""}
    assert read(tmp_path / "a.zip") == read(tmp_path / "m") == expected
    assert list(read(tmp_path / "m")) == sorted(expected)


def test_damaged_header_in_the_middle_is_not_the_end(tmp_path):
    whole = plain_tar({"a": b"1", "b": b"2", "c": b"3"})
    for damaged, got in [
        (whole[:1024] + b"?" + whole[1025:], "ReadError: bad checksum in the middle"),
        (whole[:1024] + bytes(512) + whole[1536:], "got ReadError: an end in the middle"),
        (whole[:1024], "got ReadError: empty header in the middle"),
    ]:
        # Packed after the damage, so that no checksum tells: tarfile finds one file, and an end.
        (tmp_path / "a.tgz").write_bytes(gzip.compress(damaged))
        with tarfile.open(tmp_path / "a.tgz") as archive:
            assert archive.getnames() == ["a"]
        with pytest.raises(ArchiveError, match=f"a.tgz'.*{got}.*Delete '.*a.tgz' and get it"):
            read(tmp_path / "a.tgz")


def test_checksum_behind_the_last_file_is_looked_at(tmp_path):
    packed = bytearray(gzip.compress(plain_tar({"a": b"1"})))
    packed[-8] ^= 1
    (tmp_path / "a.tgz").write_bytes(packed)
    with pytest.raises(ArchiveError, match="BadGzipFile: CRC check failed"):
        read(tmp_path / "a.tgz")


def test_file_that_claims_more_than_it_may_is_refused_by_its_header(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain_tar({"a": bytes(2 << 20)}))
    with pytest.raises(
        ArchiveError, match=r"a.tar': a got 2097152 bytes, expected at most"
    ) as caught:
        read(tmp_path / "a.tar")
    assert (caught.value.path, caught.value.member) == (str(tmp_path / "a.tar"), "a")


def test_name_or_header_of_a_megabyte_is_refused(tmp_path):
    named, described = member("a" * (1 << 20)), member("a")
    described.pax_headers = {"comment": "a" * (1 << 20)}
    for header in (named.tobuf(tarfile.GNU_FORMAT), described.tobuf(tarfile.PAX_FORMAT)):
        (tmp_path / "a.tar").write_bytes(header + bytes(1024))
        with pytest.raises(ArchiveError, match=r"a name or its like of 104\d+ bytes"):
            read(tmp_path / "a.tar")


def test_size_below_zero_is_no_empty_file(tmp_path):
    info = member("a")
    info.size = -1
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ArchiveError, match=r"a.tar' got 0 of -1 bytes"):
        read(tmp_path / "a.tar")


def test_zip_whose_header_understates_a_file_is_refused_without_unpacking_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1 << 20))
        archive.getinfo("a").file_size = 10
    with pytest.raises(ArchiveError, match=r"a.zip': a got BadZipFile: Bad CRC-32"):
        read(tmp_path / "a.zip")


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_packed_otherwise_is_refused(tmp_path, packing):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", packing) as archive:
        archive.writestr("a", b"x")
    with pytest.raises(ArchiveError, match=f"got the compression {packing}, expected a stored or"):
        read(tmp_path / "a.zip")


def test_too_many_entries_are_refused(tmp_path):
    write_tar(tmp_path / "a.tgz", {str(number): b"" for number in range(51)})
    with pytest.raises(ArchiveError, match="got more than 50 entries"):
        read(tmp_path / "a.tgz")


def test_wanted_file_that_is_a_link_or_there_twice_is_refused(tmp_path):
    for second, got in [
        (member("a", tarfile.SYMTYPE, "/etc/passwd"), "a link or device"),
        (member("a"), "two files of that name"),
        (member("m/a"), "a second file 'a'"),
    ]:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.addfile(member("./a"))
            archive.addfile(second)
        with pytest.raises(ArchiveError, match=f"a.tar': (m/)?a got {got}, expected one file"):
            read_by_name(tmp_path / "a.tar", ["a"], LIMITS)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.tar")
    (tmp_path / "b.zip").symlink_to("/dev/zero")
    for name in ("a.tar", "b.zip"):
        with pytest.raises(ArchiveError, match=f"{name}' got a device, pipe or socket"):
            read(tmp_path / name)


def test_name_that_no_terminal_shows_is_escaped(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain_tar({"a\udc80\n": bytes(2 << 20)}, tarfile.GNU_FORMAT))
    with pytest.raises(ArchiveError, match="expected at most") as caught:
        read(tmp_path / "a.tar")
    assert r"'a\udc80\n' got 2097152" in str(caught.value)

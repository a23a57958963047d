import io
import tarfile
from pathlib import Path

import pytest

from penstock.readers.convert.archives import unpack
from penstock.readers.convert.errors import ConversionError, UnsafeArchiveError
from tests.readers.convert.originals import write_tar


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.mode = 0o4777
    return info


def test_files_are_unpacked_below_the_folder_without_their_modes(tmp_path: Path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("photos", tarfile.DIRTYPE))
        info = member("photos/./a.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    unpack(archive, tmp_path / "out")
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
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_member_that_would_escape_is_refused_before_anything_is_written(
    bad: tarfile.TarInfo, tmp_path: Path
):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member("good"))
        tar.addfile(bad)
    with pytest.raises(UnsafeArchiveError, match="expected regular files below the folder"):
        unpack(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_archive_that_would_fill_the_disk_is_refused(tmp_path: Path):
    archive = write_tar(tmp_path / "a.tar.gz", {"zeros": bytes(100_000)})
    with pytest.raises(UnsafeArchiveError, match="got 100000 bytes unpacked, expected at most 999"):
        unpack(archive, tmp_path / "out", max_bytes=999)


@pytest.mark.parametrize("size", [0, 20, 100, 2000])
def test_truncated_archive_is_an_error(size: int, tmp_path: Path):
    archive = write_tar(tmp_path / "a.tar.gz", {"noise": bytes(range(256)) * 400})
    data = archive.read_bytes()
    archive.write_bytes(data[: min(size, len(data) - 30)])
    with pytest.raises(ConversionError, match="expected a whole tar archive"):
        unpack(archive, tmp_path / "out")

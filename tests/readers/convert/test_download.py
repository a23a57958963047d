import hashlib
from pathlib import Path

import pytest

from penstock.readers.convert import download
from penstock.readers.convert.download import DownloadError, RemoteFile, fetch, show_progress
from tests.readers.convert.serving import Server, serve

DATA = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.bin").write_bytes(DATA)
    with serve(folder) as running:
        yield running


def fetch_a(server: Server, folder: Path, sha256: str | None = DIGEST, **options) -> Path:
    return fetch(
        RemoteFile(url=f"{server.url}/a.bin", sha256=sha256), folder, retry_secs=0, **options
    )


def test_file_is_downloaded_with_progress(server, tmp_path):
    calls = []
    path = fetch_a(server, tmp_path, progress=lambda *call: calls.append(call))
    assert path.read_bytes() == DATA
    assert calls[0] == ("a.bin", 0, len(DATA))
    assert calls[-1] == ("a.bin", len(DATA), len(DATA))
    assert not path.with_name("a.bin.part").exists()


def test_file_that_is_there_is_not_downloaded(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(DATA)
    fetch_a(server, tmp_path)
    assert server.ranges == []


def test_download_that_breaks_off_is_resumed(server, tmp_path, caplog):
    server.break_offs = [300_000, 700_000]
    assert fetch_a(server, tmp_path).read_bytes() == DATA
    assert server.ranges == [None, "bytes=300000-", "bytes=700000-"]
    assert caplog.messages[0] == (
        "The download of a.bin stopped: the connection ended after 300000 of 1024000 bytes. "
        "Trying again in 0 s."
    )


@pytest.mark.parametrize("has_ranges", [True, False])
def test_download_that_was_interrupted_is_finished_by_a_later_run(has_ranges, server, tmp_path):
    def interrupt(name: str, num_bytes: int, total_bytes: int | None) -> None:
        if num_bytes >= 500_000:
            raise KeyboardInterrupt

    server.has_ranges = has_ranges
    with pytest.raises(KeyboardInterrupt):
        fetch_a(server, tmp_path, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.bin.part"]
    num_bytes = (tmp_path / "a.bin.part").stat().st_size
    assert 500_000 <= num_bytes < len(DATA)
    calls = []
    path = fetch_a(server, tmp_path, progress=lambda *call: calls.append(call))
    assert path.read_bytes() == DATA
    assert server.ranges == [None, f"bytes={num_bytes}-"]
    assert calls[0] == ("a.bin", num_bytes if has_ranges else 0, len(DATA))
    assert not (tmp_path / "a.bin.part").exists()


@pytest.mark.parametrize("part", [DATA, DATA + b"more", b"x" * len(DATA)])
def test_part_that_has_all_bytes_is_kept_only_if_it_is_the_file(part, server, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(part)
    assert fetch_a(server, tmp_path).read_bytes() == DATA
    assert len(server.ranges) == (1 if part == DATA else 2)


def test_download_that_never_ends_well_is_an_error_and_may_be_resumed(server, tmp_path):
    server.break_offs = [100, 200, 300, 400, 500]
    with pytest.raises(DownloadError, match="the connection ended after 500 of 1024000 bytes"):
        fetch_a(server, tmp_path)
    assert (tmp_path / "a.bin.part").read_bytes() == DATA[:500]
    assert fetch_a(server, tmp_path).read_bytes() == DATA


def test_download_of_another_checksum_is_an_error_and_leaves_nothing(server, tmp_path):
    with pytest.raises(DownloadError, match=f"got SHA-256 {DIGEST}, expected {'0' * 64}") as caught:
        fetch_a(server, tmp_path, "0" * 64)
    assert str(caught.value).startswith(f"download of {server.url}/a.bin got")
    assert "The download was removed; run again to repeat it." in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["served"]


def test_resumed_download_of_another_file_is_removed_and_then_made_anew(server, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(DownloadError, match="The download was removed"):
        fetch_a(server, tmp_path)
    assert fetch_a(server, tmp_path).read_bytes() == DATA
    assert server.ranges == ["bytes=1000-", None]


def test_file_of_another_checksum_is_an_error_and_is_kept(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(DownloadError, match=r"Remove it to download .* \(--skip_checksum\)"):
        fetch_a(server, tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert fetch_a(server, tmp_path, None).read_bytes() == b"mine"


def test_missing_file_is_an_error_at_once(server, tmp_path):
    with pytest.raises(DownloadError, match="HTTP Error 404"):
        fetch(RemoteFile(url=f"{server.url}/b.bin"), tmp_path)
    assert len(server.ranges) == 1


def test_file_that_cannot_be_written_is_an_error_at_once(server, tmp_path):
    (tmp_path / "a.bin.part").mkdir()
    with pytest.raises(DownloadError, match=r"IsADirectoryError: .* expected the whole file"):
        fetch_a(server, tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "/etc/passwd"])
def test_other_addresses_are_refused(url, tmp_path):
    with pytest.raises(DownloadError, match=r"expected http://\.\.\. or https://"):
        fetch(RemoteFile(url=url), tmp_path)


def test_pipe_gets_a_line_an_interval_on_stderr(capsys, monkeypatch):
    now_secs = iter([0.0, 4.0, 11.0, 12.0, 21.5, 22.0, 31.0, 33.0])
    monkeypatch.setattr(download.time, "monotonic", lambda: next(now_secs))
    with show_progress() as report:
        for num_bytes in range(5):
            report("a.bin", num_bytes * 1_000_000, 5_000_000)
        for num_bytes in range(3):
            report("b.bin", num_bytes * 1_000_000, None)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["a.bin: 2.0 of 5.0 MB", "a.bin: 4.0 of 5.0 MB", "b.bin: 2.0 MB"]

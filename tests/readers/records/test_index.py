import os
import subprocess
import sys

import pytest

from penstock.readers.records import RecordFiles, RecordFormat
from penstock.readers.records import files as index_module
from penstock.readers.records.framing import OFRECORD, TFRECORD
from tests.readers.published import read_records, write_records

PAYLOADS = [bytes([number]) * (700 * number) for number in range(60)]


@pytest.fixture
def path(tmp_path):
    """Write a TFRecord file of more than 1 MiB, so that its index is kept."""
    path = write_records(tmp_path / "a.tfrecord", PAYLOADS)
    assert path.stat().st_size > 1 << 20
    return path


@pytest.mark.parametrize("framing", [TFRECORD, OFRECORD], ids=lambda framing: framing.name)
@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 0, 70_000, 5, 65_524, 9_000, 3] * 5])
def test_records_of_any_sizes_are_where_the_index_says(framing, sizes, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"".join(framing.frame(bytes(size)) for size in sizes))
    payloads = read_records([path], framing=framing, compression="")
    assert payloads == [bytes(size) for size in sizes]


def test_index_is_kept_beside_the_file_and_used(path, monkeypatch):
    assert read_records([path]) == PAYLOADS
    assert path.with_name(".a.tfrecord.penstock-index").exists()
    monkeypatch.setattr(index_module, "build_index", None)
    assert read_records([path]) == PAYLOADS


def test_index_goes_to_the_cache_folder_when_one_is_given(path, tmp_path):
    assert read_records([path], cache_dir=str(tmp_path / "cache")) == PAYLOADS
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert not path.with_name(".a.tfrecord.penstock-index").exists()


def test_index_that_cannot_be_kept_beside_the_file_goes_to_the_users_cache(
    path, tmp_path, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (path.parent / ".a.tfrecord.penstock-index").mkdir()  # also root cannot replace a folder
    assert read_records([path]) == PAYLOADS
    assert len(list((tmp_path / "cache" / "index").iterdir())) == 1


def test_index_of_a_file_that_changed_is_built_anew(path):
    assert read_records([path]) == PAYLOADS
    write_records(path, PAYLOADS[::-1])
    assert read_records([path]) == PAYLOADS[::-1]


@pytest.mark.parametrize("damage", ["empty", "flipped", "short", "foreign"])
def test_damaged_index_is_built_anew(damage, path):
    read_records([path])
    kept = path.with_name(".a.tfrecord.penstock-index")
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    damaged = {"empty": b"", "flipped": data, "short": data[:-8], "foreign": b"x" * len(data)}
    kept.write_bytes(damaged[damage])
    assert read_records([path]) == PAYLOADS


@pytest.mark.slow
def test_index_built_by_several_processes_at_once_is_whole(path):
    program = (
        "import sys; from penstock.readers.records import RecordFiles, RecordFormat;"
        "files = RecordFiles([sys.argv[1]], RecordFormat());"
        "print(sum(map(len, files.read(range(len(files))))))"
    )
    command = [sys.executable, "-c", program, str(path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=240)[0].strip() for process in started]
    assert outputs == [str(sum(map(len, PAYLOADS)))] * 2
    left = [name for name in os.listdir(path.parent) if name != "a.tfrecord"]
    assert left == [".a.tfrecord.penstock-index"]


def test_truncated_file_gives_the_records_before_its_end_and_the_damage(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    files = RecordFiles([path], RecordFormat())
    assert len(files) == len(PAYLOADS) - 1
    offset = len(data) - len(PAYLOADS[-1]) - 16
    assert str(files.damages[0]) == (
        f"'{path}', record 59 at byte {offset}: TFRecord record got 41315 of 41316 bytes, expected "
        "a whole record. The file ends inside it. Write the file again, or pass on_error='skip' "
        "to leave the end out."
    )
    assert not path.with_name(".a.tfrecord.penstock-index").exists()

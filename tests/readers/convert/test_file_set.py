import subprocess
import sys
from pathlib import Path

import pytest

from penstock.readers.convert.file_set import find_stale, needs_making, write_together
from penstock.readers.ofrecord_files import find_parts

KILLED = """
import os, signal, sys
from pathlib import Path
from penstock.readers.convert.file_set import write_together

targets = [Path(sys.argv[1], f"part-{number}") for number in range(3)]
with write_together(targets) as paths:
    paths[0].write_bytes(b"whole")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def parts(folder: Path, num_parts: int) -> list[Path]:
    return [folder / f"part-{number}" for number in range(num_parts)]


def make(targets: list[Path]) -> None:
    with write_together(targets) as paths:
        for path in paths:
            path.write_bytes(b"new")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_process_that_is_killed_leaves_no_file_of_the_set(tmp_path, caplog):
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path]).returncode == -9
    (left,) = tmp_path.iterdir()
    with pytest.raises(FileNotFoundError):
        find_parts(tmp_path)
    make(parts(tmp_path, 3))
    assert len(find_parts(tmp_path)) == 3
    assert caplog.messages == [
        f"'{left}' belongs to another conversion. If that was killed and runs no more, remove it."
    ]


@pytest.mark.parametrize("num_placed", range(4))
def test_set_that_is_put_in_place_in_part_is_not_taken_for_a_whole_one(
    num_placed, tmp_path, monkeypatch
):
    for path in parts(tmp_path, 6):
        path.write_bytes(b"old")
    replace, placed = Path.replace, []

    def stop(path: Path, target: Path) -> Path:
        if len(placed) == num_placed:
            raise KeyboardInterrupt
        placed.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        make(parts(tmp_path, 4))
    assert sorted(contents(tmp_path).items()) == sorted((path.name, b"new") for path in placed)
    assert needs_making(parts(tmp_path, 4), force=False)
    with pytest.raises(FileNotFoundError):
        find_parts(tmp_path)


@pytest.mark.parametrize(
    ("target", "stale", "other"),
    [
        (
            "pets_train_00000-of-00001.tfrecord",
            ["pets_train_00000-of-00005.tfrecord", "pets_train_00004-of-00005.tfrecord"],
            # The last is another process's share of the same set.
            [
                "cats_train_00000-of-00005.tfrecord",
                "pets_train_00000-of-00005.txt",
                "pets_train_00003-of-00001.tfrecord",
            ],
        ),
        ("train-00000-of-01024", ["train-00000-of-00002"], ["train-00000-of-00002.index"]),
        ("mnist_train.tfrecord", [], ["mnist_train.tfrecord.old", "part-0"]),
    ],
)
def test_stale_files_are_those_of_the_same_name_and_another_number(target, stale, other, tmp_path):
    for name in (target, *stale, *other):
        (tmp_path / name).touch()
        (tmp_path / f".{name}.penstock-index").touch()
    assert [path.name for path in find_stale([tmp_path / target])] == stale
    with write_together([tmp_path / target]) as (path,):
        path.touch()
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert left == {target, *other}
    assert {path.name for path in tmp_path.glob(".*")} == {f".{n}.penstock-index" for n in other}

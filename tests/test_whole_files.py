"""Files that take the place of others: whole, or not at all."""

from pathlib import Path

import pytest

from penstock._whole_files import replacing


@pytest.mark.parametrize("name", ["notes.txt", "a" * 255])
def test_block_that_ends_well_replaces_the_file(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def write_half(path: Path, error: BaseException) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_block_that_fails_leaves_the_old_file_alone(error: BaseException, tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]

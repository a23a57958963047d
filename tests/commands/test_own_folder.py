"""`penstock train photos/`: which folders it takes, and which runs a name finds."""

import json
from pathlib import Path

import pytest

from penstock.commands._checks import UsageError
from penstock.commands._own_folder import describe_folder
from penstock.commands._run_folders import find_run_path


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_folder_of_two_classes_is_named(tmp_path):
    folder = make(tmp_path / "photos", "cat/1.jpg", "dog/1.png")
    expected = {"dataset_name": "image_folder", "dataset_dir": str(folder)}
    assert describe_folder(str(folder)) == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.jpg", "2.jpg"], "2 images and no folder in it"),
        (["cat/1.jpg"], "one class, 'cat', expected two or more"),
        (["cat/1.jpg", "dog/notes.txt"], "no .jpg or .png image in 'dog'"),
        (["a_train.tfrecord", "b_train.tfrecord"], "record files of 'a', 'b'"),
    ],
)
def test_other_folder_is_a_usage_error(tmp_path, names, message):
    with pytest.raises(UsageError, match=message):
        describe_folder(str(make(tmp_path, *names)))


def test_run_is_found_by_its_name_and_by_that_of_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for network in ("a", "b"):
        make(tmp_path / f"runs/photos_{network}", "config.json", "data.json")
        flags = {"dataset_name": "image_folder", "dataset_dir": "x/photos"}
        (tmp_path / f"runs/photos_{network}/config.json").write_text(json.dumps(flags))
        if network == "a":
            assert find_run_path("photos") == Path("runs/photos_a")
    assert find_run_path("photos_b") == Path("runs/photos_b")
    with pytest.raises(UsageError, match="expected one: photos_a, photos_b"):
        find_run_path("photos")

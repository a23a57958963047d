"""`penstock train photos/`: which folders it takes, and which runs a name finds."""

import json
from pathlib import Path

import pytest

from penstock.commands._failures import UsageError
from penstock.commands._flags import make_train_flags
from penstock.commands._image_folders import describe_folder
from penstock.commands._run.plan import plan_source
from penstock.commands._run.splits import open_split
from penstock.commands._run_folder.runs import find_run_path


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_folder_of_two_classes_is_named(tmp_path):
    folder = make(tmp_path / "photos", "cat/1.jpg", "dog/1.png")
    expected = {"dataset_name": "image_folder", "dataset_dir": str(folder)}
    assert describe_folder(str(folder)) == expected


@pytest.mark.parametrize("name", ["my photos", "Füchse", "photos/", "test photos"])
def test_folder_may_have_any_name_and_hidden_files(tmp_path, name):
    make(tmp_path / name, "Füchse ü/1.JPG", "two words/1.jpeg", ".DS_Store", "Thumbs.db", ".git/a")
    assert describe_folder(f"{tmp_path}/{name}")["dataset_dir"] == str(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("cat", "no class 'dog', expected the 2 classes"), ("eel", "no class 'cat', 'dog'")],
)
def test_parts_have_the_same_classes(tmp_path, name, message):
    pictures = make(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", f"test/{name}/1.jpg")
    flags = make_train_flags({"dataset_name": "image_folder", "dataset_dir": str(pictures)})
    with pytest.raises(ValueError, match=message):
        open_split(plan_source(flags), "test")


def test_part_to_test_on_has_to_be_there(tmp_path):
    pictures = make(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "notes/a.txt")
    flags = make_train_flags({"dataset_name": "image_folder", "dataset_dir": str(pictures)})
    with pytest.raises(FileNotFoundError, match="expected one beside 'train'"):
        open_split(plan_source(flags), "test")


def test_loose_file_in_images_does_not_hide_their_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "runs/photos/config.json", "photos/cat/1.jpg", "photos/notes.txt")
    assert find_run_path("photos") == Path("runs/photos")
    (tmp_path / "photos/config.json").touch()
    assert find_run_path("photos") == Path("photos")


def test_run_is_found_by_its_name_and_by_that_of_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for network in ("a", "b"):
        make(tmp_path / f"runs/photos_{network}", "config.json", "data.json")
        flags = {"dataset_name": "image_folder", "dataset_dir": "x/photos"}
        (tmp_path / f"runs/photos_{network}/config.json").write_text(json.dumps(flags))
        if network == "a":
            assert find_run_path("photos") == Path("runs/photos_a")
    assert find_run_path("photos_b") == Path("runs/photos_b")
    with pytest.raises(UsageError, match=r"2 runs are on this data: photos_a, photos_b\. Name"):
        find_run_path("photos")

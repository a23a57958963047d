"""`penstock train photos/`: which folders it takes, what it chooses, which runs a name finds."""

import json
from pathlib import Path

import pytest

from penstock.commands._failures import UsageError
from penstock.commands._flags import make_train_flags
from penstock.commands._image_folders import describe_folder
from penstock.commands._run import suited
from penstock.commands._run.splits import open_split
from penstock.commands._run_folder.runs import find_run_path
from tests.commands.running import TINY, succeed, write_images


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("name", ["my photos", "Füchse", "photos/", "test photos"])
def test_folder_may_have_any_name_and_hidden_files(tmp_path, name):
    make(tmp_path / name, "Füchse ü/1.JPG", "two words/1.jpeg", ".DS_Store", "Thumbs.db", ".git/a")
    expected = {"dataset_name": "image_folder", "dataset_dir": str(tmp_path / name)}
    assert describe_folder(f"{tmp_path}/{name}", {}) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [("cat", "no class 'dog', expected the 2 classes"), ("eel", "no class 'cat', 'dog'")],
)
def test_parts_have_the_same_classes(tmp_path, name, message):
    pictures = make(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", f"test/{name}/1.jpg")
    flags = make_train_flags({"dataset_name": "image_folder", "dataset_dir": str(pictures)})
    with pytest.raises(ValueError, match=message):
        open_split(flags, "test")


def test_part_to_test_on_has_to_be_there(tmp_path):
    pictures = make(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "notes/a.txt")
    flags = make_train_flags({"dataset_name": "image_folder", "dataset_dir": str(pictures)})
    with pytest.raises(FileNotFoundError, match="expected one beside 'train'"):
        open_split(flags, "test")


def test_loose_file_in_images_does_not_hide_their_run(tmp_path):
    make(tmp_path, "runs/photos/config.json", "photos/cat/1.jpg", "photos/notes.txt")
    assert find_run_path("photos") == Path("runs/photos")
    (tmp_path / "photos/config.json").touch()
    assert find_run_path("photos") == Path("photos")


def test_run_is_found_by_its_name_and_by_that_of_its_data(tmp_path):
    for network in ("a", "b"):
        make(tmp_path / f"runs/photos_{network}", "config.json", "data.json")
        flags = {"dataset_name": "image_folder", "dataset_dir": "x/photos"}
        (tmp_path / f"runs/photos_{network}/config.json").write_text(json.dumps(flags))
        if network == "a":
            assert find_run_path("photos") == Path("runs/photos_a")
    assert find_run_path("photos_b") == Path("runs/photos_b")
    with pytest.raises(UsageError, match=r"2 runs are on this data: photos_a, photos_b\. Name"):
        find_run_path("photos")


FOLDER = {"dataset_name": "image_folder", "dataset_dir": "photos"}


def choose(num_images, choice=suited._ON_CPU, **flags):
    return suited.choose(choice, make_train_flags({**flags, **FOLDER}), flags, num_images)


ASKED = {"batch_size": 8, "cache_image_size": 40, "optimizer": "optax.adam"}


@pytest.mark.parametrize(
    ("num_images", "flags", "expected"),
    [
        (270, {}, {"batch_size": 32, "num_epochs": 180, "cache_image_size": 64}),
        (269, {}, {"batch_size": 32, "num_epochs": 180, "cache_image_size": 64}),
        (40, {}, {"batch_size": 16, "num_epochs": 200}),
        (1_000_000, {}, {"num_epochs": 15}),
        # Images are kept at twice the size.
        (270, {"train_image_size": 48}, {"cache_image_size": 96}),
        # A network that is named has its own size and another optimizer.
        (
            270,
            {"model_name": "mobilenet_v2"},
            {
                "cache_image_size": 448,
                "optimizer": "optax.adam",
                "learning_rate": 0.001,
                "train_image_size": None,
            },
        ),
        # What is asked for is not chosen, nor a rate, which would be that of another optimizer.
        (270, ASKED, dict.fromkeys([*ASKED, "learning_rate"]) | {"num_epochs": 45}),
        (270, {"stop_at_step": 100}, {"num_epochs": None}),
        # A few steps have a rate that falls.
        (20, {"num_epochs": 1}, {"learning_rate_decay_type": "cosine"}),
        (20, {"stop_at_step": 3}, {"learning_rate_decay_type": "cosine"}),
        (20, {"stop_at_step": 30}, {"learning_rate_decay_type": "one_cycle"}),
        (20, {"num_epochs": 100, "stop_at_step": 2}, {"learning_rate_decay_type": "cosine"}),
        (20, {}, {"learning_rate_decay_type": "one_cycle"}),
    ],
)
def test_number_of_images_and_flags_decide_what_is_chosen(num_images, flags, expected):
    chosen = choose(num_images, **flags)
    assert {name: chosen.get(name) for name in expected} == expected


def test_images_are_kept_where_they_fit():
    assert choose(270, suited._ON_ACCELERATOR)["cache_image_size"] == 320
    assert "cache_image_size" not in choose(100_000, suited._ON_ACCELERATOR)


def test_records_are_not_kept_as_images():
    flags = make_train_flags({"dataset_name": "mine", "dataset_dir": "records"})
    assert "cache_image_size" not in suited.choose(suited._ON_CPU, flags, {}, 270)


def test_suited_flags_are_valid_of_a_real_folder(tmp_path):
    write_images(tmp_path, "cat", "dog", count=12)
    made = suited.suit({"dataset_name": "image_folder", "dataset_dir": str(tmp_path)}, {})
    assert made.flags.model.model_name == made.chosen["model_name"]
    assert made.flags.preprocessing.cache_image_size is not None


def test_one_step_is_trained(tmp_path, capsys):
    write_images(tmp_path / "photos", "cat", "dog", count=6)
    words = ("train", "photos", *TINY, "--train_image_size=8", "--stop_at_step=1")
    printed, _ = succeed(capsys, *words)
    assert "--learning_rate_decay_type=cosine" in printed

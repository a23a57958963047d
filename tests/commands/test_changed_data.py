"""Runs on a folder of one's own whose images or classes are others than before."""

import shutil

import cv2
import numpy as np
import pytest

from tests.commands.running import run

WORDS = ("--model_name=lenet", "--train_image_size=8", "--batch_size=8", "--num_epochs=1")
RUN = "runs/photos_lenet"


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Return a folder of three classes."""
    monkeypatch.chdir(tmp_path)
    for name in ("bee", "cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            image = np.full((8, 8, 3), 20 * number, np.uint8)
            cv2.imwrite(f"photos/{name}/{number}.png", image)
    return tmp_path / "photos"


def rename_class(photos):
    (photos / "cat").rename(photos / "ant")


def remove_class(photos):
    shutil.rmtree(photos / "cat")


def add_class(photos):
    shutil.copytree(photos / "cat", photos / "eel")


def remove_image(photos):
    (photos / "cat/3.png").unlink()


def rename_image(photos):
    (photos / "cat/3.png").rename(photos / "cat/30.png")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rename_class, "the class 'cat' is gone; the class 'ant' is new"),
        (
            remove_class,
            "the class 'cat' is gone; 27 images to train on, now 18; 3 images to test on, now 2",
        ),
        (
            add_class,
            "the class 'eel' is new; 27 images to train on, now 36; 3 images to test on, now 4",
        ),
        (remove_image, "3 images to test on, now 2"),
        (rename_image, "images of other names"),
    ],
)
def test_changed_data_get_a_run_of_their_own(change, said, photos, capsys):
    train = ("train", "photos", *WORDS)
    status, _, err = run(capsys, *train)
    assert status == 0, err
    status, out, err = run(capsys, *train)
    assert status == 0, err
    assert "The run is over" in out
    change(photos)

    status, _, err = run(capsys, *train, f"--checkpointDir={RUN}")
    assert status == 1
    assert "got the folder of another run; " in err
    assert f"; {said}; expected a new one" in err
    status, out, err = run(capsys, *train)
    assert status == 0, err
    assert f"a new run: {RUN} is of other data, {said}" in " ".join(out.split())
    assert f"penstock eval {RUN}-2" in out


def test_evaluation_needs_the_classes_of_the_run(photos, capsys):
    status, _, err = run(capsys, "train", "photos", *WORDS)
    assert status == 0, err
    assert run(capsys, "eval", RUN)[0] == 0
    rename_class(photos)
    status, _, err = run(capsys, "eval", RUN)
    assert status == 1
    assert f"'photos' got no class 'cat', expected the 3 classes that '{RUN}' was trained on" in err

"""`penstock clean`: images with another's label come first."""

import csv
import re
import shutil

import cv2
import numpy as np
import pytest

import penstock as ps
from penstock.commands import clean
from tests.commands.running import TINY, fail, run

WRONG = ("cat/7.png", "dog/3.png", "dog/11.png")


def draw(random, name):
    """Return stripes: across of a cat, upright of a dog."""
    image = random.integers(0, 60, (16, 16, 3)).astype(np.uint8)
    lines = np.arange(0, 16, 4)
    index = (lines,) if name == "cat" else (slice(None), lines)
    image[index] += 180
    return image


@pytest.fixture
def photos(tmp_path):
    """Return a folder of two classes of 20 images; three have the other's label."""
    random = np.random.default_rng(0)
    for name, other in (("cat", "dog"), ("dog", "cat")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            path = f"{name}/{number}.png"
            image = draw(random, other if path in WRONG else name)
            cv2.imwrite(str(tmp_path / "photos" / path), image)
    return tmp_path / "photos"


def read(path):
    with path.open() as file:
        return [row["image"] for row in csv.DictReader(file)]


WORDS = (*TINY, "--train_image_size=16", "--batch_size=8", "--optimizer=adam")
WORDS += ("--learning_rate=0.01", "--learning_rate_decay_type=fixed", "--num_epochs=25")


def test_images_with_the_label_of_another_class_come_first(photos, capsys, monkeypatch):
    assert run(capsys, "train", "photos", *WORDS)[0] == 0
    made, init = [], ps.ProgramBuilder.__init__
    monkeypatch.setattr(
        ps.ProgramBuilder,
        "__init__",
        lambda self, *args, **how: made.append(init(self, *args, **how)),
    )
    status, out, err = run(capsys, "clean", "photos")
    assert status == 0, err
    assert len(made) == 1, "the folds' programs are the same"
    folder = photos.parent / "runs/photos_tiny"
    # All of them, those that were held out in training too.
    images = read(folder / "doubted.csv")
    assert sorted(images) == sorted(f"{n}/{k}.png" for n in ("cat", "dog") for k in range(20))
    assert {*images[:4]} >= {*WRONG}
    assert "fold 3 of 3: accuracy " in out
    assert "of 40 taken for another class. The list: runs/photos_tiny/doubted.csv" in out
    for path in (photos / "cat").iterdir():
        if path.name != "7.png":
            path.unlink()
    assert run(capsys, "report", "photos")[0] == 0
    page = (folder / "report.html").read_text()
    assert "Labels in doubt" in page
    assert all(name in page for name in WRONG)


def test_image_that_cannot_be_decoded_is_said_before_any_training(photos, capsys, monkeypatch):
    monkeypatch.setattr(clean, "_train", lambda *args: pytest.fail("it trains"))
    file = photos / "cat/5.png"
    whole = file.read_bytes()
    at = whole.index(b"IDAT") + 8
    words = [word if "epochs" not in word else "--num_epochs=1" for word in WORDS]
    assert run(capsys, "train", "photos", *words)[0] == 0
    # Its first and last bytes are those of an image.
    file.write_bytes(whole[:at] + bytes(20) + whole[at + 20 :])
    err = fail(capsys, "clean", "photos")
    assert re.search(r"got 1 of \d+ images that cannot be decoded", err), err


@pytest.mark.slow
def test_parts_of_their_own_are_named_by_their_folders(photos, capsys):
    for part, numbers in (("val", (1, 3)), ("test", (2, 11)), ("train", range(20))):
        for name in ("cat", "dog"):
            (photos / part / name).mkdir(parents=True)
            for number in numbers:
                path = photos / name / f"{number}.png"
                if path.exists():
                    path.rename(photos / part / name / path.name)
    for name in ("cat", "dog"):
        shutil.rmtree(photos / name)
    assert run(capsys, "train", "photos", *WORDS)[0] == 0
    assert run(capsys, "clean", "photos", "--folds=2", "--output=list.csv")[0] == 0
    wrong = {"train/cat/7.png", "val/dog/3.png", "test/dog/11.png"}
    assert {*read(photos.parent / "list.csv")[:4]} >= wrong

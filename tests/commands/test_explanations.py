"""`penstock predict --explain`: pictures of where a network looked, and where they go."""

import json
import shutil
import sys

import cv2
import numpy as np
import pytest

from penstock import Trainer, layers
from penstock.commands.predict import draw_explanation
from penstock.models import _registry
from tests.commands.running import run, succeed

PLUGIN = """
from penstock import layers, models
@models.register("spot_colors", default_image_size=8, preprocessing="lenet", num_classes=3)
def spot_colors(images, num_classes):
    net = layers.pool2d(images, 2, "avg", 2)
    points = {} if num_classes == 2 else {"pool": net}
    return layers.fc(net.mean(axis=(1, 2)), size=num_classes, name="last"), points
"""
WORDS = ("--model_name=spot_colors", "--plugin=spot_colors.py", "--num_classes=3", "--top_k=1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with images, a network that names the color of a spot, and its weights."""
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr(_registry, "_MODELS", dict(_registry._MODELS))
    (tmp_path / "spot_colors.py").write_text(PLUGIN)
    (tmp_path / "images/more").mkdir(parents=True)
    image = np.zeros((8, 8, 3), np.uint8)
    image[:4, 4:, 2] = 255  # red, as opencv has it
    cv2.imwrite("images/spot.png", image)
    cv2.imwrite("images/more/spot.png", np.ascontiguousarray(image[::-1]))

    trainer = Trainer(lambda: layers.mean(layers.fc(layers.data("color", [3]), 3, name="last")))
    trainer.parameters["last/w"] = 10 * np.eye(3, dtype=np.float32)
    trainer.save_params("weights")
    return tmp_path


def find_warm_quarter(path):
    """Return the quarter of a picture's right half that is warmest: row and column."""
    picture = cv2.imread(str(path))[:, :, ::-1].astype(float)
    assert picture.shape == (224, 456, 3)
    right = picture[:, 232:, 0]
    quarters = right.reshape(2, 112, 2, 112).mean(axis=(1, 3))
    return divmod(int(quarters.argmax()), 2)


def test_pictures_show_where_the_network_looked(folder, capsys):
    out, _ = succeed(capsys, "predict", "weights", "images", *WORDS, "--explain")
    assert out.splitlines() == [
        "images/more/spot.png  class 0 98.6%  -> spot.explained.png",
        "images/spot.png  class 0 98.6%  -> spot.explained-2.png",
    ]
    assert find_warm_quarter("spot.explained.png") == (1, 1)
    assert find_warm_quarter("spot.explained-2.png") == (0, 1)


@pytest.mark.slow
def test_pictures_of_a_run_go_there_and_are_no_images_of_the_next_training(folder, capsys):
    for name in ("red", "green", "blue"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(4):
            shutil.copy("images/spot.png", f"photos/{name}/{number}.png")
    train = ("train", "photos", *WORDS[:2], "--stop_at_step=1", "--overwrite")
    succeed(capsys, *train)

    words = ("predict", "runs/photos_spot_colors", "photos/red", "--explain", "--top_k=1")
    out, _ = succeed(capsys, *words)
    assert [line.split("-> ")[1] for line in out.splitlines()] == [
        f"runs/photos_spot_colors/explained/{number}.explained.png" for number in range(4)
    ]
    assert len(list((folder / "photos").rglob("*.png"))) == 12

    succeed(capsys, *train)
    assert not (folder / "runs/photos_spot_colors/explained").exists()


def test_pictures_of_an_earlier_time_are_no_images_to_name(folder, capsys):
    words = ("predict", "weights", "images", *WORDS, "--explain", "--output=images")
    out, _ = succeed(capsys, *words)
    assert len(list((folder / "images").rglob("*.png"))) == 4
    assert run(capsys, *words)[:2] == (0, out)


def test_pictures_in_a_folder_have_names_of_their_own(folder, capsys):
    words = ("--explain", "--output=looks/new", "--json")
    out, _ = succeed(capsys, "predict", "weights", "images", *WORDS, *words)
    named = [json.loads(line)["explanation"] for line in out.splitlines()]
    assert named == ["looks/new/spot.explained.png", "looks/new/spot.explained-2.png"]
    assert find_warm_quarter(named[1]) == (0, 1)
    paths = sorted(str(path) for path in (folder / "images").rglob("*.png"))
    assert len(paths) == 2


def test_images_of_other_channels_are_drawn():
    assert draw_explanation(np.zeros((300, 400, 4)), np.ones((3, 4))).shape == (300, 808, 3)
    gray = draw_explanation(np.full((28, 28, 1), 300.0), np.zeros((7, 7)))
    assert (gray[:, :224] == 255).all()

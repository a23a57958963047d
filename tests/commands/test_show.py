"""`penstock show`: what a network is fed, as a picture."""

import re

import cv2
import numpy as np
import pytest

from penstock.commands import show
from tests.commands.running import succeed


@pytest.fixture
def photos(tmp_path):
    """Return a folder of two classes of photos of several sizes."""
    generator = np.random.default_rng(0)
    for name in ("cat", "$dog_1$"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            image = generator.integers(0, 256, (20 + number, 30, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photos" / name / f"{number}.png"), image)
    return tmp_path / "photos"


def test_digits_are_shown_as_the_network_gets_them(tmp_path, capsys):
    path = tmp_path / "made" / "digits.png"
    out, _ = succeed(capsys, "show", f"--output={path}", "--images=5")
    assert re.search(r"\(5 images, 28 x 28 x 1, float32 from -\d", out)
    assert cv2.imread(str(path)).shape[1] > 500


def test_photos_are_shown_with_the_settings_of_train(photos, capsys):
    out, _ = succeed(capsys, "show", "photos", "--images=9")
    assert re.fullmatch(r"show.png  \(9 images, 32 x 32 x 3, float32 from -\S+ to \S+\)\n", out)
    assert (photos.parent / "show.png").exists()


def test_raw_images_keep_their_sizes(photos, capsys):
    out, _ = succeed(capsys, "show", "photos", "--raw", "--images=40", "--output=raw.svg")
    assert "20 images, as stored, of 12 sizes" in out
    assert (photos.parent / "raw.svg").read_text().count("<image") == 20


def test_names_and_images_belong_together(photos, monkeypatch):
    drawn = []
    monkeypatch.setattr(show, "_draw", lambda path, shown: drawn.append(shown))
    for name, level in (("cat", 40), ("$dog_1$", 200)):
        for path in (photos / name).iterdir():
            cv2.imwrite(str(path), np.full((32, 32, 3), level, np.uint8))
    # As they are stored the labels have no offset.
    for words in (["photos"], ["photos", "--raw"], ["photos", "--raw", "--labels_offset=1"]):
        assert show.run(words) == 0
        bright = [image.mean() > 120 for image in drawn[-1].images]
        assert bright == [name == "$dog_1$" for name in drawn[-1].names]
        assert len(set(bright)) == 2

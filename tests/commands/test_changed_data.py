"""Runs on a folder of one's own whose images or classes are others than before."""

import contextlib
import json
import shutil

import pytest

from penstock import commands
from tests.commands.running import TINY, fail, succeed, write_images

WORDS = (*TINY, "--train_image_size=8", "--batch_size=8", "--num_epochs=1")
RUN = "runs/photos_tiny"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with three classes of images, and a run on them."""
    root = tmp_path_factory.mktemp("changed")
    write_images(root / "photos", "bee", "cat", "dog", count=10)
    with contextlib.chdir(root):
        assert commands.main(["train", "photos", *WORDS]) == 0
    return root


@pytest.fixture
def photos(trained, tmp_path, monkeypatch):
    """Return the images of a copy of that folder."""
    root = shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(root)
    return root / "photos"


def copy_class(photos, names):
    for name in names:
        shutil.copytree(photos / "cat", photos / name)


def rename(photos, old, new):
    (photos / old).rename(photos / new)


def describe(photos, num_final_test, *digests):
    """Write other facts of the last test, with the first digests as they are."""
    path = photos.parent / RUN / "data.json"
    facts = json.loads(path.read_text())
    names = [*facts["names_digests"][:2], *digests]
    path.write_text(json.dumps(facts | {"num_final_test": num_final_test, "names_digests": names}))


CHANGES = {
    "rename_class": (
        lambda photos: rename(photos, "cat", "ant"),
        "the class 'cat' is gone; the class 'ant' is new",
    ),
    "remove_class": (
        lambda photos: shutil.rmtree(photos / "cat"),
        "the class 'cat' is gone; 16 images to train on (24 before); 2 images to test on "
        "(3 before); 2 images to test on at the end (3 before)",
    ),
    "add_class": (
        lambda photos: copy_class(photos, ["eel"]),
        "the class 'eel' is new; 32 images to train on (24 before); 4 images to test on (3 before)",
    ),
    "add_classes": (
        lambda photos: copy_class(photos, "fghi"),
        "the classes 'f', 'g', 'h' and 1 more are new; ",
    ),
    "remove_image": (
        lambda photos: (photos / "cat/3.png").unlink(),
        "25 images to train on (24 before); 2 images to test on (3 before)",
    ),
    "rename_image": (
        lambda photos: rename(photos, "cat/3.png", "cat/30.png"),
        "some images have other names",
    ),
    "rename_image_of_the_last_test": (
        lambda photos: describe(photos, 3, "another"),
        "some images have other names",
    ),
    "add_last_test": (
        lambda photos: describe(photos, None, None),
        "3 images to test on at the end (0 before)",
    ),
}


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_folder_of_a_run_on_other_data_is_refused_with_what_changed(change, reason, photos, capsys):
    change(photos)
    err = fail(capsys, "train", "photos", *WORDS, f"--checkpointDir={RUN}")
    assert "got the folder of another run; " in err
    assert f"; {reason}" in err


def test_changed_data_get_a_run_of_their_own(photos, capsys):
    # A run of before, of which the last test is not known, is one on the same data.
    describe(photos, None)
    out, _ = succeed(capsys, "train", "photos", *WORDS)
    assert "The run is complete" in out
    change, reason = CHANGES["rename_image"]
    change(photos)
    out, _ = succeed(capsys, "train", "photos", *WORDS)
    assert f"this is a new run because the data changed since {RUN}: {reason}" in " ".join(
        out.split()
    )
    assert f"penstock eval {RUN}-2" in out


@pytest.mark.slow
def test_evaluation_needs_the_classes_of_the_run(photos, capsys):
    succeed(capsys, "eval", RUN, TINY[0])
    rename(photos, "cat", "ant")
    err = fail(capsys, "eval", RUN, TINY[0])
    assert f"'photos' got no class 'cat', expected the 3 classes that '{RUN}' was trained on" in err

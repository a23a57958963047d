"""Runs on a folder of one's own whose images or classes are others than before."""

import contextlib
import shutil
from pathlib import Path
from unittest import mock

import pytest

from penstock import commands
from penstock.commands._run_folder import folder as run_folder
from penstock.commands._run_folder.folder import Facts, RunFolder
from tests.commands.running import TINY, fail, run, succeed, write_images

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


CHANGES = {
    "rename_class": (
        lambda photos: rename(photos, "cat", "ant"),
        "the class 'cat' is gone; the class 'ant' is new",
    ),
    "remove_class": (
        lambda photos: shutil.rmtree(photos / "cat"),
        "the class 'cat' is gone; 16 images to train on (24 before); "
        "2 images to test on (3 before)",
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
}


def test_images_of_the_last_test_are_part_of_the_data():
    facts = Facts((8, 8, 3), None, ("a", "b"), None, 4, 2, 2, ("x", "y", "z"))
    folder = RunFolder(Path("unread"))
    for now, change in (
        (facts._replace(num_final_test=3), "3 images to test on at the end (2 before)"),
        (facts._replace(names_digests=("x", "y", "w")), "some images have other names"),
    ):
        with mock.patch.object(run_folder, "read_facts", return_value=facts):
            assert run_folder.find_changes(folder, now) == [change]
        # A folder `test` that was not there.
        bare = facts._replace(num_final_test=None, names_digests=("x", "y", None))
        with mock.patch.object(run_folder, "read_facts", return_value=bare):
            assert run_folder.find_changes(folder, facts) == [
                "2 images to test on at the end (0 before)"
            ]
        # Of runs of before it is not known.
        older = facts._replace(num_final_test=None, names_digests=("x", "y"))
        with mock.patch.object(run_folder, "read_facts", return_value=older):
            assert run_folder.find_changes(folder, now) == []


@pytest.mark.quick("rename_image")
@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_changed_data_get_a_run_of_their_own(change, reason, photos, capsys):
    train = ("train", "photos", *WORDS)
    change(photos)
    err = fail(capsys, *train, f"--checkpointDir={RUN}")
    assert "got the folder of another run; " in err
    assert f"; {reason}" in err
    out, _ = succeed(capsys, *train)
    assert f"this is a new run because the data changed since {RUN}: {reason}" in " ".join(
        out.split()
    )
    assert f"penstock eval {RUN}-2" in out


@pytest.mark.slow
def test_evaluation_needs_the_classes_of_the_run(photos, capsys):
    assert "The run is complete" in run(capsys, "train", "photos", *WORDS)[1]
    succeed(capsys, "eval", RUN, TINY[0])
    rename(photos, "cat", "ant")
    err = fail(capsys, "eval", RUN, TINY[0])
    assert f"'photos' got no class 'cat', expected the 3 classes that '{RUN}' was trained on" in err

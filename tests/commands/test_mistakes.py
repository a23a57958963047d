"""What a beginner does wrong ends in one readable line, with the status that fits."""

import re

import cv2
import numpy as np
import pytest

from tests.checkpoints.test_disk_failures import tmpfs
from tests.commands.running import CODE, penstock, run
from tests.source_tree import ROOT

PLUGIN = f"--plugin={ROOT / 'tests/commands/tiny.py'}"
TINY = (PLUGIN, "--model_name=tiny", "--enable_paisoar=False", "--stop_at_step=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make folders in which something is missing."""
    root = tmp_path_factory.mktemp("mistakes")
    (root / "empty").mkdir()
    (root / "classes/cat").mkdir(parents=True)
    for path in ("photos/cat", "photos/dog", "single/cat", *(f"pair/{n}" for n in "abcdefghijk")):
        (root / path).mkdir(parents=True)
        cv2.imwrite(str(root / path / "1.png"), np.zeros((9, 9, 3), np.uint8))
    (root / "photos/cat/2.png").write_text("not an image")
    (root / "weights.safetensors").write_bytes(b"nothing")
    (root / "cifar10_train.tfrecord").write_bytes(b"nothing like a record")
    (root / "file").touch()
    return root


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--dataset_name=image_folder --dataset_dir=nowhere",
            "'nowhere') got no folder of that",
        ),
        ("--dataset_name=image_folder --dataset_dir=empty", "'empty') got no class"),
        ("--dataset_name=image_folder --dataset_dir=classes", "'classes') got no image"),
        ("--dataset_name=image_folder --dataset_dir=photos", "2.png"),
        ("--dataset_name=image_folder --dataset_dir=single", "expected two or more"),
        ("--dataset_name=cifar10 --dataset_dir=empty", "expected one of 'cifar-10-binary.tar.gz'"),
        ("--dataset_name=cifar10 --dataset_dir=nowhere", "got no folder 'nowhere'"),
        (
            "--dataset_name=cifar10 --dataset_dir=. --train_files=cifar10_trian.tfrecord",
            "Did you mean 'cifar10_train.tfrecord'?",
        ),
        ("--dataset_name=cifar10 --dataset_dir=.", "cifar10_train.tfrecord"),
        ("--dataset_name=cifra10 --dataset_dir=empty", "Did you mean 'cifar10'?"),
        ("--dataset_name=wine", "expected one of image and label"),
        ("--num_classes=5", "--num_classes got 5, expected at least 10"),
        ("--labels_offset=1 --num_classes=9", "got the label -1 after --labels_offset=1"),
        ("--preprocessing_name=none --train_image_size=9", "expected 9 x 9"),
        (
            "--model_name=alexnet_v2 --train_image_size=9",
            "--train_image_size got 9, expected 67 or more. With smaller images, 'alexnet_v2' has",
        ),
        ("--model_name=lenet --train_image_size=3", "--train_image_size got 3, expected 4 or more"),
        ("--freeze=conv9", "freeze got 'conv9', expected a pattern that matches a parameter"),
        ("--decay_scheme=luong10", "decay_scheme='luong10', expected at least 10 steps"),
        ("--task_type=finetune --model_dir=nowhere", "'nowhere' got nothing"),
        ("--task_type=finetune --model_dir=empty", "got a folder without weights"),
        (
            "--task_type=finetune --model_dir=. --ckpt_file_name=weight.safetensors",
            "Did you mean 'weights.safetensors'?",
        ),
        ("--task_type=finetune --model_dir=. --ckpt_file_name=weights.safetensors", "weights"),
        ("--dataset_name=image_folder --dataset_dir=pair --output_dir=pair", "outside of --datase"),
        ("--dataset_name=image_folder --dataset_dir=pair --checkpointDir=pair", "outside of --da"),
        ("--gradient_accumulation_steps=33", "expected 32 or less"),
        ("--place=gpu", "place got 'gpu', expected a platform present here"),
        ("--checkpointDir=file/run", "'file/run"),
        ("--checkpointDir=/proc/run", "/proc/run"),
    ],
)
def test_mistake_in_training_is_one_line(words, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    status, _, err = run(capsys, "train", *TINY, *words.split())
    assert status == 1
    lines = [line for line in err.splitlines() if not line.startswith(("WARNING:", "ERROR:"))]
    assert len(lines) == 1, err
    assert lines[0].startswith("penstock train: ")
    assert message in lines[0]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("eval", 2, "got no run, expected the folder of one"),
        ("eval nowhere", 1, "'nowhere' got nothing, expected parameters"),
        ("eval empty", 1, "'empty' got a folder without weights"),
        ("eval weights.safetensors", 2, "without config.json and data.json beside them"),
        ("eval nowhere --split=tset", 2, "Did you mean 'test'?"),
        ("eval nowhere --tpo_k=1", 2, "the flag '--tpo_k'"),
        ("predict", 2, "got no run"),
        ("predict nowhere a.png", 1, "'nowhere' got nothing"),
        ("predict nowhere --top_k=0", 2, "--top_k got 0, expected a number of 1 or more"),
    ],
)
def test_mistake_in_using_is_one_line(words, status, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    found, out, err = run(capsys, *words.split())
    assert (found, out) == (status, "")
    assert err.count("\n") == 1
    assert message in err


def test_folder_of_images_that_is_not_named_is_not_the_working_folder(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder / "pair")
    status, _, err = run(capsys, "train", *TINY, "--dataset_name=image_folder")
    assert status == 2
    assert "--dataset_name=image_folder got no folder, expected --dataset_dir=FOLDER" in err


@pytest.mark.slow
def test_platform_that_is_not_there_is_said_at_once(tmp_path):
    done = penstock(tmp_path, "train", *TINY, JAX_PLATFORMS="cuda")
    assert done.returncode == 1
    assert "expected a platform present here: JAX_PLATFORMS='cuda' allows no other" in done.stderr
    assert done.stderr.count("penstock train: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_batch_is_not_larger_than_the_data(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    words = ("--dataset_name=image_folder", "--dataset_dir=pair", f"--output_dir={tmp_path}")
    status, out, err = run(capsys, "train", *TINY, *words, "--batch_size=700")
    assert status == 0, err
    said = re.search(r"--batch_size=700 is more than there are: a step takes all (\d+) im", out)
    assert said is not None, out
    assert f"batch      {said[1]} = 1 process x 1 device (cpu) x {said[1]}; 1 step an epoch" in out


def test_damaged_image_is_left_out_and_named_where_that_is_asked_for(
    capfd, caplog, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            path = tmp_path / f"photos/{name}/{number}.jpg"
            cv2.imwrite(str(path), np.full((9, 9, 3), 9 * number, np.uint8))
    # The end of the last is missing, which is seen before anything is decoded.
    for number, end in ((0, b"\xff\xd9"), (3, b"\xff\xd9"), (7, b"")):
        path = tmp_path / f"photos/cat/{number}.jpg"
        path.write_bytes(b"\xff\xd8 not an image" + end)
    words = ("--dataset_name=image_folder", "--dataset_dir=photos")
    status, _, err = run(capfd, "train", *TINY, *words)
    assert status == 1
    assert re.search(r"photos/cat/\d.jpg.*leaves it out with --skip_damaged=True", err)
    status, out, err = run(capfd, "train", *TINY, *words, "--skip_damaged=True", "--stop_at_step=3")
    assert status == 0, err
    out = " ".join(out.split())
    assert "left out of 'photos': 1 file that is no whole image, 'cat/7.jpg'" in out
    said = r"skipped 2 of \d\d records. The first: .*cat/\d.jpg.* The others: .*cat/\d.jpg\."
    assert re.search(said, caplog.text)
    assert "best test" in out


def test_mistakes_leave_no_folder_of_a_run(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "train", *TINY, "--num_classes=5")[0] == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_images_that_predict_cannot_read_are_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "train", *TINY, "--num_preprocessing_threads=0")[0] == 0
    (tmp_path / "none").mkdir()
    (tmp_path / "text.png").write_text("not an image")
    for words, message in [
        ("none", "'none' got a folder without images"),
        ("seven.png", "'seven.png' got no file of that name"),
        ("text.png", "text.png"),
    ]:
        status, _, err = run(capsys, "predict", "runs/digits_tiny", words)
        assert status == 1
        assert message in err
        assert err.count("\n") == 1
        assert "on_error" not in err
    status, _, err = run(capsys, "predict", "runs/digits_tiny")
    assert status == 2
    status, _, err = run(capsys, "eval", "runs/digits_tiny", "--num_classes=12")
    assert status == 1
    assert "10 classes there, 12 here" in err


@pytest.mark.slow
def test_disk_without_space_is_one_line(tmp_path):
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2000, 2000)); "
    done = penstock(tmp_path, "train", *TINY, code=limited + CODE, JAX_ENABLE_COMPILATION_CACHE="0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("penstock train: ")
    assert "File too large" in last


@pytest.mark.slow
def test_disk_that_becomes_full_is_one_line_and_the_same_command_trains_when_there_is_room():
    with tmpfs(600_000) as disk:
        (disk / "filler").write_bytes(bytes(540_000))
        done = penstock(disk, "train", *TINY, "--stop_at_step=20")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        *_, last = done.stderr.splitlines()
        assert last.startswith("penstock train: checkpoint of global step 20: ")
        assert "No space left on device" in last
        assert last.endswith("See to the cause; the same command goes on from there.")
        (disk / "filler").unlink()
        assert penstock(disk, "train", *TINY, "--stop_at_step=20").returncode == 0


@pytest.mark.slow
def test_environment_variable_shows_where_it_failed(tmp_path):
    words = ("train", *TINY, "--num_classes=5")
    done = penstock(tmp_path, *words, PENSTOCK_TRACEBACK="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr

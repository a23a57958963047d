"""The preprocessing of weights goes with them: into folders, runs, evaluation and prediction."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock import commands
from penstock.commands import train
from penstock.commands._run.data import choose_preparation
from penstock.commands._run.plan import find_starting_weights
from tests.commands.running import run, succeed
from tests.source_tree import ROOT

PLUGINS = ",".join(str(ROOT / "tests/commands" / name) for name in ("tiny.py", "tiny_of_torch.py"))
PLUGIN, TINY = f"--plugin={PLUGINS}", "--model_name=tiny"
DESCRIPTION = {"name": "lenet", "options": {"dtype": "float32"}}
CARRIED = "images: lenet (dtype=float32), which the weights were trained with"
FLAGS = (PLUGIN, TINY, "--enable_paisoar=False", "--stop_at_step=2")
TUNED = (*FLAGS, "--num_preprocessing_threads=0", "--task_type=finetune")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a state dict, the parameters it was imported as, and what was said."""
    folder = tmp_path_factory.mktemp("imported")
    random = np.random.default_rng(0)
    shapes = {
        "body.0.weight": (32, 64),
        "body.0.bias": 32,
        "head.weight": (10, 32),
        "head.bias": 10,
    }
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(arrays, folder / "tiny.safetensors")
    words = ["import-weights", "tiny", str(folder / "tiny.safetensors"), PLUGIN]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert commands.main([*words, f"--output={folder / 'params'}"]) == 0
        again = [f"--output={folder / 'other'}", "--preprocessing_name=none"]
        assert commands.main([*words, *again]) == 0
    (folder / "said").write_text(output.getvalue())
    return folder


def test_imported_parameters_say_what_their_images_are(folder):
    text = (folder / "said").read_text()
    assert "images: lenet (dtype=float32), of torchvision or timm\n" in text
    assert "images: none, as asked; torchvision or timm has lenet (dtype=float32)\n" in text
    described = json.loads((folder / "params/description.json").read_text())
    assert described["about"] == {"preprocessing": DESCRIPTION}
    other = json.loads((folder / "other/description.json").read_text())
    assert other["about"]["preprocessing"]["name"] == "none"


def test_evaluation_and_prediction_use_it_and_say_it(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    cv2.imwrite("one.png", np.full((8, 8), 200, np.uint8))
    words = ("params", PLUGIN, TINY)
    out, err = succeed(capsys, "eval", *words, "--dataset_name=digits")
    assert out.startswith(f"{CARRIED}\n")
    _, err = succeed(capsys, "predict", *words[:1], "one.png", *words[1:], "--num_classes=10")
    assert CARRIED in err
    asked = "--preprocessing_name=none"
    other, _ = succeed(capsys, "eval", *words, "--dataset_name=digits", asked)
    assert other.startswith(
        "images: none, as --preprocessing_name asks, though the weights were trained with lenet"
    )
    assert other.splitlines()[2] != out.splitlines()[2]
    assert CARRIED in succeed(capsys, "eval", *words, "--dataset_name=digits", "--json=True")[1]


@pytest.mark.slow
def test_head_without_weights_is_said_and_out_of_the_loss(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    network = ("--model_name=tiny_with_head", "--dataset_name=digits", PLUGIN)
    words = ("import-weights", "tiny_with_head", "tiny.safetensors", PLUGIN, "--output=headless")
    out, err = succeed(capsys, *words)
    assert "not in the file, left initial: AuxLogits/head/w, AuxLogits/head/b" in out
    plain = run(capsys, "eval", "tiny.safetensors", TINY, *network[1:], "--json=True")[1]
    for weights in ("headless", "tiny.safetensors"):
        out, err = succeed(capsys, "eval", weights, *network, "--json=True")
        assert "no weights for the auxiliary head (2 arrays)" in err
        loss, expected = (json.loads(text)["loss"] for text in (out, plain))
        # The decay of the head's own weights is all that it adds.
        assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_fine_tuning_carries_it_into_the_run_and_its_parameters(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    words = (*TUNED, "--model_dir=.", "--ckpt_file_name=tiny.safetensors")
    out, _ = succeed(capsys, "train", *words)
    assert CARRIED in out
    assert (
        json.loads(Path("runs/digits_tiny/data.json").read_text())["preprocessing"] == DESCRIPTION
    )
    assert run(capsys, "eval", "runs/digits_tiny", "--plot=")[1].startswith(f"{CARRIED}\n")
    for name in ("params", "best"):
        shutil.copytree(f"runs/digits_tiny/{name}", f"copied/{name}")
        shown = run(capsys, "eval", f"copied/{name}", PLUGIN, TINY, "--dataset_name=digits")[1]
        assert shown.startswith(f"{CARRIED}\n")
    again = train.read_flags([*TUNED, "--model_dir=runs", "--ckpt_file_name=digits_tiny"])
    assert choose_preparation(again, find_starting_weights(again)).summary == CARRIED
    # A run goes on when the weights that it began with are gone.
    gone = train.read_flags([*TUNED, "--model_dir=gone"])
    assert choose_preparation(gone, find_starting_weights(gone)).summary == CARRIED


def test_network_of_its_own_says_so_and_no_more(folder, monkeypatch):
    monkeypatch.chdir(folder)
    plain = train.read_flags([*FLAGS])
    chosen = choose_preparation(plain, find_starting_weights(plain))
    assert (chosen.summary, chosen.notes) == ("images: lenet, the network's own", ())
    asked = train.read_flags([*FLAGS, "--preprocessing_name=none"])
    assert choose_preparation(asked).notes == ()


def test_fastnns_preprocessing_of_resnet_v2_is_back_in_its_mode():
    resnet = ("--model_name=resnet_v2_50",)
    assert choose_preparation(train.read_flags([*resnet])).name == "inception"
    compatible = train.read_flags([*resnet, "--fastnn_compat=True"])
    chosen = choose_preparation(compatible)
    assert (chosen.name, chosen.summary) == ("vgg", "images: vgg, FastNN's for the network")
    other = train.read_flags([*resnet, "--fastnn_compat=True", "--preprocessing_name=inception"])
    assert choose_preparation(other).name == "inception"

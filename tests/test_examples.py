"""The examples, each by the command in its docstring, and the script of the design card."""

import ast
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests import compiling
from tests.commands.running import penstock
from tests.source_tree import ROOT


def command_of(name: str) -> list[str]:
    """Return the command in an example's docstring, for this Python and from any folder."""
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    match = re.search(r"`python (examples/.*?)`", ast.get_docstring(ast.parse(source)) or "")
    assert match is not None, f"{name} does not say how it is started"
    path, *flags = shlex.split(match[1])
    return [sys.executable, "-W", "error", str(ROOT / path), *flags]


def run(name: str, folder: Path, *flags: str) -> str:
    """Run an example on one device; return what it printed."""
    done = subprocess.run(
        [*command_of(name), *flags],
        cwd=folder,
        env=os.environ | {"XLA_FLAGS": compiling.xla_flags(level=1)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def percent(pattern: str, text: str) -> float:
    """Return the number that `pattern` finds."""
    match = re.search(pattern, text)
    assert match is not None, text
    return float(match[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "path"),
    [(["--net=mlp"], "runs/recognize_digits.params"), (["--param_path=a.params"], "a.params")],
    ids=["perceptron", "convolutions"],
)
def test_most_digits_are_recognized(flags, path, tmp_path):
    text = run("recognize_digits", tmp_path, "--num_epochs", "5", *flags)
    assert percent(r"([\d.]+)% of 359 held-out digits read right", text) > 93
    assert (tmp_path / path).is_dir()


@pytest.mark.slow
def test_fit_a_line_explains_a_third_of_the_variance(tmp_path):
    text = run("fit_a_line", tmp_path, "--num_epochs", "20")
    assert percent(r"explains (\d+)% of the variance of 88 held-out", text) >= 30


@pytest.mark.slow
def test_custom_loop_learns_and_compiles_once_for_each_batch_size(tmp_path):
    text = run("custom_loop", tmp_path, "--num_epochs", "12")
    assert percent(r"the best parameters read ([\d.]+)% of 359", text) > 95
    assert "rate 0.0020" in text, "the learning rate was never halved"
    # Of the last batch of an epoch too, which is short.
    assert "compiled: {'train': 2, 'test': 1, 'infer': 1}" in text


@pytest.mark.slow
def test_network_of_the_library_reads_enlarged_digits(tmp_path):
    text = run("train_model", tmp_path, "--num_epochs", "1")
    assert percent(r"lenet at 28 x 28: ([\d.]+)% of 359 digits", text) > 90


@pytest.mark.slow
def test_oneflows_alexnet_trains_evaluates_saves_and_loads(tmp_path):
    text = run("alexnet", tmp_path, "-save", "saved")
    losses = [float(loss) for loss in re.findall(r"train loss: +([\d.]+)", text)]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 2
    evaluated = percent(r"9 +eval loss: +([\d.]+)", text)
    again = run("alexnet", tmp_path, "-i", "1", "-load", "saved/snapshot_10", "-save", "more")
    assert percent(r"0 +train loss: +([\d.]+)", again) < losses[0] / 2
    assert evaluated < losses[0]
    assert (tmp_path / "more/snapshot_1/params.safetensors").is_file()


@pytest.mark.slow
def test_oneflows_alexnet_runs_on_two_machines(tmp_path):
    flags = ["-m", "-n", "127.0.0.1,127.0.0.1", "-i", "1", "--node_id"]
    with subprocess.Popen(
        [*command_of("alexnet"), *flags, "1"],
        cwd=tmp_path,
        env=os.environ | {"XLA_FLAGS": compiling.xla_flags(level=1)},
        stdout=subprocess.DEVNULL,
    ) as other:
        text = run("alexnet", tmp_path, *flags, "0")
        assert other.wait(timeout=100) == 0
    assert percent(r"0 +train loss: +([\d.]+)", text) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-g", "99"], "-g got 99, expected the number of devices or less"),
        (["-m", "-n", "127.0.0.1,127.0.0.1"], "127.0.0.1:12138: 2 of this machine, "),
        (["-m", "-n", "198.51.100.1,198.51.100.2"], "198.51.100.2:12138: none of this machine, "),
    ],
)
def test_oneflows_alexnet_says_what_is_wrong_with_its_flags(tmp_path, flags, message):
    done = subprocess.run(
        [*command_of("alexnet"), *flags, "-e", "none", "-t", "none"],
        cwd=tmp_path,
        env=os.environ | {"XLA_FLAGS": compiling.xla_flags(level=1)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_fluids_script_learns_and_loads_what_it_saved(tmp_path):
    text = run("fluid_latest_syntax", tmp_path)
    assert percent(r"([\d.]+)% of 259 digits read right", text) > 80
    assert (tmp_path / "image.model").is_dir()
    first, last = (percent(rf"step {n}: cost .*, in the test ([\d.]+)", text) for n in (0, 22))
    assert last < first / 2


@pytest.mark.slow
def test_gan_draws_the_digits_it_is_asked_for(tmp_path, digits):
    run("gan", tmp_path, "--num_epochs", "60")
    grid = cv2.imread(str(tmp_path / "runs/gan.png"), cv2.IMREAD_GRAYSCALE)
    assert grid is not None
    small = cv2.resize(grid, (100, 90), interpolation=cv2.INTER_AREA) / 255
    cells = 1 - small.reshape(9, 10, 10, 10).transpose(0, 2, 1, 3)[:, :, 1:-1, 1:-1]
    nearest = [nearest_label(cell, digits) for cell in cells[1:].reshape(80, 64)]
    is_right = np.equal(nearest, np.tile(np.arange(10), 8))
    assert is_right.mean() > 0.7
    assert cells[1:].std(axis=0).mean() > 0.05, "all samples of a digit are alike"


def nearest_label(image: np.ndarray, digits) -> int:
    """Return the label of the real digit that is nearest to an image `[64]`."""
    distances = np.square(digits.train_images.reshape(-1, 64) - image[None]).sum(axis=1)
    return digits.train_labels[np.argmin(distances)]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["lstm", "transformer"])
def test_model_of_characters_predicts_better_than_counts_of_them(tmp_path, network):
    (tmp_path / "page.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"))
    flags = ("--network", network, "--folder", str(tmp_path), "--num_epochs", "8")
    text = run("characters", tmp_path, *flags)
    counted = percent(r"single characters: ([\d.]+) bits", text)
    assert percent(rf"{network}: ([\d.]+) bits", text) < counted


@pytest.mark.slow
def test_data_set_network_and_preprocessing_of_ones_own_are_trained(tmp_path):
    assert run("extend", tmp_path).count("label ") == 2
    path = ROOT / "examples/extend.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    flags = ("--dataset_name=stripes", "--model_name=two_layers", "--stop_at_step=40")
    done = penstock(tmp_path, "train", f"--plugin={path}", *flags)
    assert done.returncode == 0, done.stderr
    assert "images 16 x 16 x 1, dimmed preprocessing" in done.stdout
    assert percent(r"; last: .*accuracy ([\d.]+)%", done.stdout) > 95


def load(name: str):
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_census_of_made_people_is_learned_in_at_most_20_lines():
    example, rng, size = load("census"), np.random.default_rng(0), 2000
    names = {"workclass": 9, "education": 16, "gender": 2, "native-country": 42}
    table = {
        name: np.array([f"{name} {k}" for k in rng.integers(n, size=size)], dtype=object)
        for name, n in names.items()
    }
    table |= {"age": rng.integers(17, 90, size), "capital-gain": rng.integers(0, 99999, size)}
    is_rich = (table["gender"] == "gender 1") & (table["age"] > 40)
    table["income"] = np.where(is_rich, ">50K", "<=50K").astype(object)
    figures = example.main(table, num_epochs=40)
    assert list(figures) == ["loss", "AUC", "F1", "CalibrationError"]
    assert figures["AUC"] > 0.95
    assert figures["F1"] > 0.8
    assert figures["CalibrationError"] < 0.1
    lines = inspect.getsource(example.main).partition(":\n")[2].partition("    print(")[0]
    assert len([line for line in lines.splitlines() if line.strip()]) + 1 <= 20


def test_housing_of_made_blocks_has_the_r2_of_scikit_learn_to_six_digits():
    example, rng = load("housing"), np.random.default_rng(0)
    names = ["MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup"]
    table = {name: rng.lognormal(size=2000) for name in (*names, "Latitude", "Longitude")}
    table["MedHouseVal"] = np.log(table["MedInc"]) + 0.1 * table["HouseAge"]
    tested, expected = example.main(table, num_epochs=5)
    assert f"{tested:.6f}" == f"{expected:.6f}"
    assert tested > 0.8


# Section 1 of the design card, word for word.
SCRIPT = """
import optax
import penstock as ps
from penstock import layers, readers

def infer_program():
    image = layers.data("image", shape=[8, 8, 1])
    hidden = layers.simple_img_conv_pool(
        image, num_filters=20, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    hidden = layers.batch_norm(hidden)
    return layers.fc(hidden, size=10, act="softmax")

def train_program():
    label = layers.data("label", shape=[1], dtype="int32")
    prediction = infer_program()
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)

def on_event(event):
    if isinstance(event, ps.EndStep) and event.step % 10 == 0:
        loss, accuracy = event.metrics            # the only place that waits for the device
    elif isinstance(event, ps.EndEpoch):
        print(trainer.test(test_reader))
        trainer.save_params("digits.params")

trainer = ps.Trainer(train_program, optax.adam(1e-3))
trainer.train(train_reader, on_event, num_epochs=5, feed_order=["image", "label"])

inferencer = ps.Inferencer(infer_program, "digits.params")
probabilities = inferencer.infer({"image": images})
"""


# README's block is the quick one.
@pytest.mark.slow
def test_script_of_the_design_card_runs_as_written(tmp_path, monkeypatch, digits, capsys):
    from penstock import readers

    monkeypatch.chdir(tmp_path)
    names = {
        "train_reader": readers.arrays(
            (digits.train_images, digits.train_labels), batch_size=64, shuffle=True
        ),
        "test_reader": readers.arrays((digits.test_images, digits.test_labels), batch_size=64),
        "images": digits.test_images,
    }
    exec(compile(SCRIPT, "script of the design card", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 5
    probabilities = names["probabilities"]
    assert probabilities.shape == (359, 10)
    accuracy = np.mean(probabilities.argmax(axis=1) == digits.test_labels)
    assert accuracy > 0.9
    _, tested = names["trainer"].test(names["test_reader"])
    assert tested == pytest.approx(accuracy)


@pytest.mark.slow
def test_simclr_finds_views_by_a_loss_over_the_whole_batch(tmp_path):
    text = run("simclr_digits", tmp_path)
    assert percent(r"epoch 9: (\d+)% of the views", text) > percent(r"epoch 0: (\d+)% of", text) + 5
    assert percent(r"features: (\d+)% of the digits right", text) > 90

"""Runs of `penstock train`, `eval` and `predict` from end to end, on small data."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock import _parameters, commands, readers
from penstock._parameter_names import nest_variables
from penstock.commands import eval as eval_command
from penstock.commands._run_folder.folder import RunFolder
from penstock.commands._run_folder.replacement import hold
from tests.commands.running import TINY, run, start, succeed, wait_for
from tests.readers.convert.originals import write_cifar10

FAST = (*TINY, "--optimizer=momentum")


def accuracy_of(text, which="last"):
    match = re.search(rf"{which}: .*?accuracy ([\d.]+)%", text)
    assert match is not None, text
    return float(match[1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a network on digits for 60 steps; return the folder of runs and what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    words = (*FAST, "--stop_at_step=60", "--profile_every_n_iters=25", "--print_model_statistics")
    words += ("--log_device_placement=True",)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        assert commands.main(["train", *words]) == 0
    return folder, printed.getvalue()


@pytest.fixture
def text(trained, monkeypatch):
    """Work in the folder of that run; return what was printed."""
    monkeypatch.chdir(trained[0])
    return trained[1]


@pytest.mark.slow
def test_answers_of_a_run_stay_until_its_network_changes(tmp_path, capsys):
    train = ("train", *TINY, "--checkpointDir=runs/a")
    answers = tmp_path / "runs/a/answers.npz"
    for words, are_there in (
        ((*train, "--stop_at_step=2"), False),
        (("eval", "runs/a"), True),
        ((*train, "--stop_at_step=2"), True),
        ((*train, "--stop_at_step=3"), False),
    ):
        assert run(capsys, *words)[0] == 0
        assert answers.exists() == are_there, words


@pytest.mark.slow
def test_log_lines_are_fastnns_with_the_learning_rate(trained):
    lines = re.findall(
        r"^\[[\d.e-]+ secs/step, [\d.]+ samples/sec\] loss = [\d.]+, accuracy = [\d.]+, "
        r"top_5 = [\d.]+, lrate = 0\.01, global_step = (\d+)$",
        trained[1],
        re.M,
    )
    assert lines == ["10", "20", "30", "40", "50", "60"]
    assert trained[1].index("global_step = 60") < trained[1].index("test at step 60:")


@pytest.mark.slow
def test_hooks_leave_traces_checkpoints_tables_and_a_log(trained):
    folder, text = trained
    run_folder = folder / "runs/digits_tiny"
    assert sorted(os.listdir(run_folder / "profile")) == ["step-25", "step-50"]
    assert list((run_folder / "profile/step-25").rglob("operations.txt"))
    assert os.listdir(run_folder / "checkpoints/60")
    assert "hidden/w" in text
    assert "cpu:0 cpu, process 0: rows 0/1 of each batch" in text
    rows = (run_folder / "log.csv").read_text().splitlines()
    assert "learning_rate" in rows[0]
    assert [row.split(",")[3] for row in rows if row.startswith("test,")] == ["45", "60"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["params", "checkpoints", "checkpoints/60"])
def test_eval_agrees_with_the_log_by_every_path(text, capsys, path):
    last = re.search(r"; last: (.*) at step 60", text)
    assert last is not None
    out, _ = succeed(capsys, "eval", f"runs/digits_tiny/{path}", "--plot=")
    assert f"{last[1]}\n" in out


def test_eval_counts_each_image_once(text, capsys):
    out, _ = succeed(capsys, "eval", "runs/digits_tiny", "--json=True", "--plot=a.png")
    facts = json.loads(out)
    assert np.sum(facts["confusion"]) == facts["images"] == 359
    assert facts["nan_answers"] == 0
    right = np.trace(facts["confusion"]) / 359
    assert right == pytest.approx(facts["accuracy"], abs=1e-6)
    assert accuracy_of(text, "best test") == pytest.approx(100 * facts["accuracy"], abs=0.005)
    assert cv2.imread("a.png") is not None


def test_json_of_a_network_that_has_diverged_is_json(text, capsys):
    def refuse(constant):
        raise AssertionError(constant)

    Path("nan").mkdir()
    params = _parameters.read_parameters("runs/digits_tiny").items()
    broken = {key: np.full_like(value, np.nan) for key, value in params}
    _parameters.save("nan", nest_variables(broken))
    words = (*TINY[:2], "--dataset_name=digits", "--num_classes=10", "--train_image_size=8")
    out, _ = succeed(capsys, "eval", "nan", *words, "--json", "--plot=")
    facts = json.loads(out, parse_constant=refuse)
    assert (facts["loss"], facts["nan_answers"]) == ("nan", 359)
    out, _ = succeed(capsys, "eval", "nan", *words, "--plot=")
    assert "359 answers are nan;" in " ".join(out.split())
    cv2.imwrite("seven.png", np.zeros((8, 8), np.uint8))
    words = (*words[:2], *words[3:], "--json", "--output=a.jsonl")
    out, _ = succeed(capsys, "predict", "nan", "seven.png", *words)
    for text in (out, Path("a.jsonl").read_text()):
        answer = json.loads(text, parse_constant=refuse)
        assert answer["classes"][0]["probability"] == "nan"


def test_compare_gets_the_answers_of_a_runs_own_network_alone(trained, capsys, monkeypatch):
    run_folder, words = trained[0] / "runs/digits_tiny", ("--plot=", TINY[0])
    monkeypatch.chdir(run_folder)
    answers = run_folder / "answers.npz"
    answers.unlink(missing_ok=True)
    for other in (["checkpoints/60"], [".", "--preprocessing_name=cifarnet"]):
        succeed(capsys, "eval", *other, *words)
        assert not answers.exists(), other
    # As while it is trained: a better network may come, also while the test goes on.
    with hold(RunFolder(run_folder)):
        succeed(capsys, "eval", ".", *words)
    assert not answers.exists()
    with contextlib.ExitStack() as trains, monkeypatch.context() as patch:
        trains.enter_context(hold(RunFolder(run_folder)))
        load = eval_command.load_network
        patch.setattr(eval_command, "load_network", lambda *args: (load(*args), trains.close())[0])
        succeed(capsys, "eval", ".", *words)
    assert not answers.exists()
    # From inside its folder too the best.
    assert succeed(capsys, "eval", ".", *words)[0].splitlines()[1].startswith("best on 359 images")
    assert answers.exists()
    # Of two parts the one that is not for training is validation and test.
    succeed(capsys, "eval", ".", *words, "--split=validation")
    stored = np.load(answers)
    assert str(stored["split"]) == "test"


@pytest.mark.slow
def test_missing_matplotlib_is_said(text, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out, _ = succeed(capsys, "eval", "runs/digits_tiny")
    assert 'pip install "penstock[plot]"' in out


def test_predict_names_the_classes_of_images_in_folders(text, capsys):
    batch = next(iter(readers.dataset("digits", "test", 24)))
    for number, (image, label) in enumerate(zip(batch["image"], batch["label"], strict=True)):
        Path(f"scans/{label}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(f"scans/{label}/{number}.png", np.rint(255 * image[:, :, 0]))
    for name in ("a.gif", "b.GIF", "c.heic", ".d.gif", "notes.txt"):
        Path(f"scans/{name}").touch()
    status, out, err = run(capsys, "predict", "runs/digits_tiny", "scans", "--top_k=2")
    assert (status, err.splitlines()) == (
        0,
        [
            "left out 2 .gif, 1 .heic: JPEG, PNG, WebP, BMP and TIFF are read",
            "images: lenet, which the weights were trained with",
        ],
    )
    pairs = re.findall(r"^scans/(\d)/\d+\.png  (\d) [\d.]+%  \d [\d.]+%$", out, re.M)
    assert len(pairs) == 24
    assert np.mean([label == guess for label, guess in pairs]) > 0.8
    status, out, _ = run(capsys, "predict", "runs/digits_tiny", "scans", "--json=True")
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 24
    assert sum(prediction["probability"] for prediction in lines[0]["classes"]) <= 1 + 1e-6
    cv2.imwrite("large.png", np.zeros((64, 64), np.uint8))
    _, err = succeed(capsys, "predict", "runs/digits_tiny", "large.png")
    assert "large.png: resized to 8 x 8, the size it was trained on" in err


def test_one_missing_image_among_several_does_not_stop_the_others(text, capsys):
    digits = [f"runs/digits_tiny/samples/{name}.png" for name in ("nine", "zero")]
    status, out, err = run(capsys, "predict", "runs/digits_tiny", digits[0], "lost.png", digits[1])
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()] == digits
    assert "lost.png: left out, no file of that name\n" in err
    assert err.splitlines()[-1].startswith("penstock predict: got 1 of 3 that cannot be read")
    status, out, err = run(capsys, "predict", "runs/digits_tiny", "nein.png")
    assert (status, out) == (1, "")
    assert "'nein.png' got no file of that name, expected an image" in err


def test_command_that_ends_a_run_on_digits_reads_them(text, capsys):
    words = re.search(r"^use it:       penstock (predict .*)$", text, re.M)
    assert words is not None
    out, _ = succeed(capsys, *words[1].split())
    assert len(out.splitlines()) == 10
    assert re.search(r"^runs/digits_tiny/samples/nine\.png  \d [\d.]+%", out, re.M)


def test_names_of_images_and_classes_are_escaped(trained, capsys, tmp_path):
    shutil.copytree(trained[0] / "runs/digits_tiny", tmp_path / "run")
    labels = "".join(f"{number}:class {number} \x1b[2J\x9b\n" for number in range(10))
    Path("run/labels.txt").write_text(labels)
    for name in ("a\x1b[31m.png", "b\r.png", os.fsdecode(b"c\xe9.png")):
        shutil.copy("run/samples/nine.png", name)
    Path("d\x1b.png").touch()
    for words in (["predict", "run", "."], ["predict", "run", "e\x1b"], ["report", "run\x1b"]):
        _, out, err = run(capsys, *words)
        assert (out + err).replace("\n", "").isprintable(), (words, out, err)
    _, out, _ = run(capsys, "predict", "run", ".", "--top_k=1")
    assert re.match(r"a\\x1b\[31m\.png  class \d \\x1b\[2J\\x9b [\d.]+%\n", out)


def test_configuration_of_a_run_is_taken_again(trained, capsys, tmp_path):
    config = trained[0] / "runs/digits_tiny/config.json"
    words = (f"--config={config}", "--stop_at_step=2", "--profile_every_n_iters=0")
    out, _ = succeed(capsys, "train", *words)
    assert "images 8 x 8 x 1" in out
    mine = json.loads((tmp_path / "runs/digits_tiny/config.json").read_text())
    theirs = json.loads(config.read_text())
    theirs["logging"] |= {"stop_at_step": 2, "profile_every_n_iters": 0}
    assert mine == theirs


@pytest.mark.slow
def test_other_flags_have_another_folder_and_a_larger_step_goes_on(capsys):
    words = ("train", *FAST, "--stop_at_step=2", "--eval_every_n_epochs=0")
    succeed(capsys, *words)
    status, out, _ = run(capsys, *words, "--learning_rate=0.5")
    assert (status, "writes to  runs/digits_tiny-2" in out) == (0, True)
    reason = (
        "this is a new run because flags differ from runs/digits_tiny: --learning_rate=0.5 (0.01 "
    )
    assert reason in " ".join(out.split())
    status, out, _ = run(
        capsys, *words, "--checkpointDir=runs/digits_tiny", "--stop_at_step=3", "--momentum=0.5"
    )
    assert status == 0
    assert "at step 2, resumed from runs/digits_tiny/checkpoints" in out
    assert "--stop_at_step was 2, is 3" in out
    assert "--momentum was 0.9, is 0.5" in out
    status, out, _ = run(
        capsys, *words, "--checkpointDir=runs/digits_tiny", "--overwrite=True", "--hooks="
    )
    assert "starts     from initial values" in out
    assert "no checkpoints: CheckpointSaverHook is not among --hooks" in out


def test_interrupted_run_goes_on_by_the_same_command(tmp_path, capsys):
    words = (*FAST, "--stop_at_step=120", "--log_loss_every_n_iters=1")
    process = start(tmp_path, "train", *words)
    wait_for(process, "global_step = 10")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "the same command goes on from there" in err
    assert "interrupted" in err
    assert "Traceback" not in err
    steps = [int(name) for name in os.listdir(tmp_path / "runs/digits_tiny/checkpoints")]
    assert 10 <= max(steps) < 120
    out, _ = succeed(capsys, "train", *words)
    assert f"at step {max(steps)}, resumed from" in out
    assert "global_step = 120" in out


@pytest.mark.slow
def test_mock_measures_speed(capsys):
    words = ("--dataset_name=mock", "--stop_at_step=34", "--log_loss_every_n_iters=5")
    out, _ = succeed(capsys, "train", *FAST, *words)
    match = re.search(
        r"^benchmark: ([\d.]+) examples/s, ([\d.]+) to ([\d.]+) in 6 windows of 5 steps; "
        r"([\d.]+) ms a step$",
        out,
        re.M,
    )
    assert match is not None, out
    rate, least, most, step = map(float, match.groups())
    assert least <= rate <= most
    # Medians of few windows on a busy machine: as much as a window had, but for the last digit.
    assert 0.99 * least <= 32_000 / step <= 1.01 * most


@pytest.mark.slow
def test_commands_of_fastnns_page_run(capsys, tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    write_cifar10(folder)
    words = ("--dataset_name=cifar10", f"--dataset_dir={folder}", "--skip_checksum")
    succeed(capsys, "convert", *words)
    # Those of FastNN's page, section 3.1.1, and small sizes.
    words = (TINY[0], "--enable_paisoar=False", "--train_image_size=32", "--batch_size=4")
    words += ("--stop_at_step=3", "--dataset_name=cifar10", f"--dataset_dir={folder}")
    words += ("--train_files=cifar10_train.tfrecord", "--model_name=tiny")
    out, _ = succeed(capsys, "train", "--task_type=pretrain", *words)
    assert "cifar10: 20 images to train on, 4 to test on; 10 classes" in out
    best = re.search(r"best test: loss (.*?), (.*?) at step", out)
    assert best is not None
    out, _ = succeed(capsys, "eval", "runs/cifar10_tiny")
    evaluated = re.search(r"^loss (.*?), (.*)$", out, re.MULTILINE)
    assert evaluated is not None
    assert evaluated[2] == best[2]
    assert float(evaluated[1]) == pytest.approx(float(best[1]), rel=1e-5)
    assert "airplane" in out
    weights = ("--model_dir=runs/cifar10_tiny", "--ckpt_file_name=params")
    out, _ = succeed(capsys, "train", "--task_type=finetune", *words, *weights)
    assert re.search(r"(\d+) of \1 arrays from runs/cifar10_tiny/params", out)

"""What flags beyond FastNN's tables make of a run, and runs of several processes."""

import contextlib
import json
import os
import re
import subprocess
import sys

import cv2
import numpy as np
import pytest

from penstock.commands import train
from penstock.commands._run.plan import make_plan
from penstock.commands._run.training import begin
from tests.commands.running import TINY, penstock, start, succeed
from tests.distributed.processes import free_port, jax_variables
from tests.readers.case import is_missing
from tests.source_tree import ROOT

FAST = (*TINY, "--stop_at_step=2")


def assembled(folder, *words):
    with contextlib.ExitStack() as held:
        flags = train.read_flags([*FAST, f"--output_dir={folder}", *words])
        return begin(make_plan(flags), held)


def test_trainer_freezes_accumulates_averages_and_computes_as_asked(tmp_path):
    made = assembled(
        tmp_path,
        "--freeze=hidden",
        "--gradient_accumulation_steps=4",
        "--moving_average_decay=0.9",
        "--precision=float16",
        "--loss_scale=128",
    )
    options = made.trainer.builder.programs.options
    assert (options.freeze, options.num_micro_batches) == (("hidden",), 4)
    assert str(options.precision) == "float16, loss scale 128.0"
    before = {name: np.array(value) for name, value in made.trainer.parameters.items()}
    made.trainer.train(made.plan.data.train, made.plan.handlers, num_epochs=1)
    assert made.trainer.global_step == 2
    after = made.trainer.parameters
    assert np.array_equal(after["hidden/w"], before["hidden/w"])
    assert not np.array_equal(after["logits/w"], before["logits/w"])
    averaged = made.trainer.test(made.plan.data.test, averaged=True)
    assert made.plan.evaluate is not None
    assert made.plan.evaluate.last == averaged != made.trainer.test(made.plan.data.test)


@pytest.mark.slow
def test_label_smoothing_raises_the_loss_of_the_same_network(tmp_path):
    plain, smooth = assembled(tmp_path), assembled(tmp_path, "--label_smoothing=0.5")
    losses = [run.trainer.test(run.plan.data.test)["loss"] for run in (plain, smooth)]
    assert losses[0] != pytest.approx(losses[1], abs=1e-4)


@pytest.mark.slow
def test_fine_tuning_takes_the_parts_that_are_asked_for(capsys, tmp_path):
    succeed(capsys, "train", *FAST)
    tuned = ("--task_type=finetune", "--model_dir=runs/digits_tiny", "--seed=1")
    for words, text in [
        ((), "4 of 4 arrays from runs/digits_tiny/best"),
        (("--checkpoint_exclude_scopes=logits",), "left initial: logits/w, logits/b"),
        (("--checkpoint_include_scopes=*/b",), "left initial: hidden/w, logits/w"),
        (("--ckpt_file_name=checkpoints",), "4 of 4 arrays from runs/digits_tiny/checkpoints"),
        (("--ckpt_file_name=checkpoints/2",), "4 of 4 arrays from runs/digits_tiny/checkpoints/2"),
        (("--dataset_name=half_digits",), "2 of 4 arrays from runs/digits_tiny/best"),
        (
            ("--dataset_name=half_digits",),
            "last layers left initial (10 classes there, 5 here): logits/b, logits/w",
        ),
    ]:
        start = "\n".join(assembled(tmp_path / "other", *tuned, *words).start)
        assert text in start
    with pytest.raises(KeyError, match="lgoits"):
        assembled(tmp_path / "other", *tuned, "--checkpoint_exclude_scopes=lgoits")


@pytest.mark.skipif(is_missing("tf_slim"), reason="tf_slim is not installed")
@pytest.mark.filterwarnings("default")  # TensorFlow warns about itself as it is imported
def test_checkpoint_written_by_tf_slim_is_evaluated(capsys, tmp_path):
    words = ("--model_name=lenet", "--train_image_size=12", "--enable_paisoar=False")
    out, _ = succeed(capsys, "train", *words, "--stop_at_step=20")
    made = assembled(
        tmp_path / "other", *words, "--task_type=finetune", "--model_dir=runs/digits_lenet"
    )
    np.savez("parameters.npz", **dict(made.trainer.parameters))
    program = [sys.executable, "-m", "tests.commands.write_with_tf_slim"]
    files = [str(tmp_path / "parameters.npz"), str(tmp_path / "lenet.ckpt")]
    env = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([*program, *files], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    best = re.search(r"best test: (.*?) at step", out)
    assert best is not None
    flags = ("--model_name=lenet", "--train_image_size=12", "--dataset_name=digits")
    out, _ = succeed(capsys, "eval", "lenet.ckpt", *flags)
    assert f"{best[1]}\n" in out


@pytest.mark.slow
def test_one_device_alone_is_refused_in_several_processes(tmp_path):
    ended = penstock(tmp_path, "launch", "-n", "2", "--", "train", *TINY)
    assert ended.returncode == 2
    assert "--enable_paisoar got False in 2 processes, expected True" in ended.stderr


@pytest.mark.slow
def test_processes_of_worker_hosts_train_together(tmp_path):
    hosts = f"--worker_hosts=localhost:{free_port()},localhost:1"
    words = ["train", *TINY[:2], "--stop_at_step=12", hosts]
    first, second = finish([start(tmp_path, *words, f"--task_index={n}") for n in range(2)])
    assert "batch      64 = 2 processes x 1 device (cpu) x 32; 23 steps an epoch" in first
    assert "best test: " in first
    assert "loss" not in second


def finish(started):
    """Return what each of several processes printed."""
    printed = [process.communicate(timeout=120) for process in started]
    assert not any(process.returncode for process in started), printed
    return [out for out, _ in printed]


def run_processes(folder, count, *words):
    """Run `penstock` in so many processes; return what each printed to stdout, of ours."""
    port = free_port()
    places = [jax_variables(port, n, count) if count > 1 else {} for n in range(count)]
    printed = finish([start(folder, *words, **place) for place in places])
    # Gloo, which JAX computes with, prints a line of its own, but where stdout is for programs.
    is_json = "--json=True" in words
    return [out if is_json else re.sub(r"\[Gloo\] .*\n", "", out) for out in printed]


@pytest.mark.slow
def test_processes_of_a_launcher_train_evaluate_and_predict_and_one_of_them_prints(tmp_path):
    train = [*TINY[:2], "--batch_size=25", "--stop_at_step=12", "--num_preprocessing_threads=0"]
    first, second = run_processes(tmp_path, 2, "train", *train)
    assert "batch      50 = 2 processes x 1 device (cpu) x 25; 29 steps an epoch" in first
    assert second == ""
    # The last of 359 images are unequal parts.
    words = ["runs/digits_tiny", TINY[0]]
    (alone,) = run_processes(tmp_path, 1, "eval", *words, "--json=True")
    first, second = run_processes(tmp_path, 2, "eval", *words, "--json=True", "--batch_size=25")
    one, two = json.loads(alone), json.loads(first)
    for name in ("loss", "loss_interval"):
        assert two.pop(name) == pytest.approx(one.pop(name), rel=1e-5)
    assert two == one
    assert second == ""
    digits = np.random.default_rng(0).integers(0, 255, (3, 8, 8), np.uint8)
    for number, digit in enumerate(digits):
        cv2.imwrite(str(tmp_path / f"{number}.png"), digit)
    predict = ["predict", words[0], *(f"{number}.png" for number in range(3)), TINY[0]]
    (alone,) = run_processes(tmp_path, 1, *predict)
    assert len(alone.splitlines()) == 3
    assert run_processes(tmp_path, 2, *predict) == [alone, ""]

"""`--batch_size=auto`: as many images as fit, and the same number when the run goes on."""

import json
import math

import pytest

import penstock as ps
from penstock import _mesh
from penstock.commands import train
from penstock.commands._run import plan
from penstock.commands._run.data import open_for_evaluation
from tests.commands.running import TINY, fail, succeed, write_images

WORDS = ("train", *TINY, "--batch_size=auto", "--save_checkpoints_steps=1")


def measure(batch_size):
    made = plan.make_plan(train.read_flags([*TINY]))
    builder = plan.make_builder(train.read_flags([*TINY]), made.data.shape, made.place)
    return ps.plan(builder, batch_size=batch_size).total_bytes


def give_memory(monkeypatch, num_bytes):
    """Give each device the memory whose share for the step is so much."""
    # Half of a machine's is for the step.
    monkeypatch.setattr(_mesh, "find_memory", lambda device: 2 * num_bytes)


def tell(capsys, *words):
    """Return what a run prints, without its line breaks."""
    return " ".join(succeed(capsys, *words)[0].split())


def read(folder):
    return json.loads((folder / "config.json").read_text())["model"]["batch_size"]


def test_auto_is_what_fits_and_a_resumed_run_takes_the_same(capsys, tmp_path, monkeypatch):
    give_memory(monkeypatch, measure(43))
    out = tell(capsys, *WORDS, "--stop_at_step=1")
    assert "--batch_size=auto: 40 on each device, as many as fit into 50% of" in out
    assert read(tmp_path / "runs/digits_tiny") == 40
    # On a machine with more memory it would be another number, and so another run.
    give_memory(monkeypatch, measure(85))
    out = tell(capsys, *WORDS, "--stop_at_step=1")
    assert "--batch_size=auto: 40 on each device, as before" in out
    assert "resumed from runs/digits_tiny" in out


@pytest.mark.slow
def test_auto_is_the_same_by_the_folder_and_another_for_another_run(capsys, tmp_path, monkeypatch):
    give_memory(monkeypatch, measure(43))
    succeed(capsys, *WORDS, "--stop_at_step=1")
    give_memory(monkeypatch, measure(85))
    out = tell(capsys, *WORDS, "--stop_at_step=2", "--checkpointDir=runs/digits_tiny")
    assert "40 on each device, as before" in out
    out = tell(capsys, *WORDS, "--stop_at_step=1", "--seed=3")
    assert "--batch_size=auto: 80 on each device" in out
    assert read(tmp_path / "runs/digits_tiny-2") == 80


@pytest.mark.slow
def test_auto_does_not_go_on_with_a_run_whose_number_was_given(capsys, monkeypatch):
    succeed(capsys, "train", *TINY, "--stop_at_step=1")
    give_memory(monkeypatch, measure(16))
    out = tell(capsys, *WORDS, "--stop_at_step=1")
    assert "16 on each device, as many as fit" in out
    assert "new run because flags differ from runs/digits_tiny: --batch_size=16 (32 before)" in out


@pytest.mark.slow
def test_auto_is_no_more_than_the_images_of_a_folder(capsys, tmp_path):
    for part, count in (("train", 11), ("test", 1)):
        write_images(tmp_path / "photos" / part, "cat", "dog", count=count)
    out = tell(capsys, "train", "photos", *WORDS[1:], "--num_epochs=1")
    assert "--batch_size=auto: 16 on each device, as there are 22 images" in out


def test_devices_that_do_not_tell_their_memory_need_a_number(capsys, monkeypatch):
    monkeypatch.setattr(_mesh, "find_memory", lambda device: math.inf)
    err = fail(capsys, *WORDS)
    assert "--batch_size got 'auto' on cpu, expected a number" in err


def test_micro_batches_of_training_need_no_images_in_evaluation(tmp_path):
    flags = train.read_flags(["--batch_size=64", "--gradient_accumulation_steps=64"])
    assert open_for_evaluation(flags, "test", tmp_path, num_devices=8)[2] == 359

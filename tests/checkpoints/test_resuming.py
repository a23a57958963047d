"""A resumed run is the uninterrupted one: bit for bit on the CPU, wherever it was interrupted."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from tests.checkpoints.runs import (
    EPOCH,
    RUNS,
    StopAfter,
    as_killed_at,
    every_step,
    shuffled,
    train_classifier,
    train_line,
    whole_state,
)
from tests.networks import assert_same_bits, compile_warnings, linear_program, linear_reader
from tests.source_tree import ROOT

# The global steps at which runs of two epochs of eleven steps are interrupted. With eight steps to
# a launch there are checkpoints after 8, 9, 10, 11, 19, 20, 21 and 22.
MOMENTS = {
    "after the first launch": 8,
    "among the single steps behind the launches": 9,
    "before the short last batch": EPOCH - 1,
    "at the end of an epoch": EPOCH,
    "in the second epoch": EPOCH + 8,
    "before the last step": 2 * EPOCH - 1,
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return folder, state and what was seen of each run; made when first asked for."""

    @functools.cache
    def made(name):
        directory = tmp_path_factory.mktemp("runs") / name
        trainer, seen = RUNS[name].trained(every_step(directory))
        return directory, whole_state(trainer), seen

    return made


def assert_goes_on_like(resumed, whole, *, step):
    """Check that a run resumed at `step` saw the rest of what the whole run saw, and that alone."""
    assert resumed.steps == {k: record for k, record in whole.steps.items() if k >= step}
    ended = {k: record for k, record in whole.epochs.items() if record[0][0] > step}
    assert {k: resumed.epochs[k] for k in ended} == ended


# Each run with two moments, and each moment with two runs.
PAIRS = [
    pytest.param(name, step, id=f"{what}-{name}")
    for number, name in enumerate(RUNS)
    for what, step in ([*MOMENTS.items()] * 2)[number : number + 5 : 4]
]


@pytest.mark.quick("in the second epoch-classifier-1")
@pytest.mark.parametrize(("name", "step"), PAIRS)
def test_run_killed_after_a_checkpoint_ends_with_the_bits_of_the_whole_run(
    uninterrupted, name, step, tmp_path
):
    directory, state, whole = uninterrupted(name)
    left = as_killed_at(directory, step, tmp_path / "left")
    trainer, seen = RUNS[name].trained(every_step(left))
    assert_same_bits(whole_state(trainer), state)
    assert_goes_on_like(seen, whole, step=step)
    assert (trainer.epoch, trainer.global_step) == (2, 2 * EPOCH)


@pytest.mark.quick("line")
@pytest.mark.parametrize(
    ("name", "step"), [("line-1", EPOCH), ("classifier-1", 8), ("gan-8", EPOCH)]
)
def test_run_that_was_stopped_ends_with_the_bits_of_the_whole_run(
    uninterrupted, name, step, tmp_path
):
    _, state, whole = uninterrupted(name)
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=1000)
    stopped, _ = RUNS[name].trained(config, StopAfter(step))
    assert stopped.global_step >= step
    trainer, seen = RUNS[name].trained(config)
    assert_same_bits(whole_state(trainer), state)
    assert_goes_on_like(seen, whole, step=stopped.global_step)


def test_checkpoints_change_nothing_in_a_run(uninterrupted):
    _, state, whole = uninterrupted("line-1")
    trainer, seen = RUNS["line-1"].trained(None)
    assert_same_bits(whole_state(trainer), state)
    assert (seen.steps, seen.epochs) == (whole.steps, whole.epochs)


@pytest.mark.slow
@pytest.mark.parametrize("is_asynchronous", [True, pytest.param(False)])
def test_runs_interrupted_again_and_again_end_with_the_bits_of_the_whole_run(
    uninterrupted, is_asynchronous, tmp_path
):
    _, state, whole = uninterrupted("classifier-1")
    config = ps.CheckpointConfig(directory=tmp_path, is_asynchronous=is_asynchronous)
    epochs = {}
    for step in (3, 4, EPOCH, EPOCH + 7, 3 * EPOCH):
        trainer, seen = RUNS["classifier-1"].trained(config, StopAfter(step))
        assert trainer.global_step == min(step, 2 * EPOCH)
        epochs.update(seen.epochs)
    assert_same_bits(whole_state(trainer), state)
    assert epochs == whole.epochs


# Another process: it leaves each run's last state, and what was seen, beside it.
RESUME = """
import json, sys
from pathlib import Path
import numpy as np
from tests.checkpoints.runs import RUNS, every_step, leaves

folder = Path(sys.argv[1])
for name in sys.argv[2:]:
    trainer, seen = RUNS[name].trained(every_step(folder / name))
    np.savez(folder / f"{name}.npz", *leaves(trainer))
    said = [list(seen.steps.items()), list(seen.epochs.items())]
    (folder / f"{name}.json").write_text(json.dumps(said))
"""


@pytest.mark.slow
def test_new_process_says_where_it_resumes_and_ends_with_the_bits_of_the_whole_run(
    uninterrupted, tmp_path
):
    for name in RUNS:
        as_killed_at(uninterrupted(name)[0], EPOCH + 8, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path), *RUNS],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "resuming" in line] == [
        f"resuming from {tmp_path / name / str(EPOCH + 8)}: global step {EPOCH + 8}, 8 steps into "
        "epoch 1"
        for name in RUNS
    ]
    for name in RUNS:
        _, state, whole = uninterrupted(name)
        with np.load(tmp_path / f"{name}.npz") as file:
            reached = [file[key] for key in file.files]
        assert_same_bits(reached, jax.tree.leaves(state))
        seen = json.loads((tmp_path / f"{name}.json").read_text())
        rest = {k: record for k, record in whole.steps.items() if k >= EPOCH + 8}
        assert seen == json.loads(json.dumps([list(rest.items()), list(whole.epochs.items())[1:]]))


def test_resuming_says_that_the_seed_is_another(tmp_path, caplog):
    config = ps.CheckpointConfig(directory=tmp_path)
    for seed in (1, 1, 2):
        trainer = ps.Trainer(linear_program, optax.sgd(0.1), seed=seed, checkpoint=config)
        trainer.train(linear_reader())
    lines = [line for line in compile_warnings(caplog) if line.startswith("resuming from ")]
    end = ", with the seed of the run that wrote it, which is another"
    assert [line.endswith(end) for line in lines] == [False, True]


# Several calls of train in one script.


def script(checkpoint, *, is_same_reader, event_handler=None):
    """Train for an epoch, and for another one in a second call; return the state."""
    trainer = train_classifier(checkpoint)
    first = shuffled()
    second = first if is_same_reader else shuffled(seed=8)
    trainer.train(first, event_handler)
    trainer.train(second, event_handler)
    return whole_state(trainer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_same_reader", "steps"), [(True, (4, 2 * EPOCH)), (False, (EPOCH, EPOCH + 4))]
)
def test_script_of_two_calls_goes_on_in_the_call_it_was_killed_in(is_same_reader, steps, tmp_path):
    directory, options = tmp_path / "all", {"is_same_reader": is_same_reader}
    state = script(every_step(directory), **options)
    for step in steps:
        left = as_killed_at(directory, step, tmp_path / str(step))
        assert_same_bits(script(every_step(left), **options), state)


def test_finished_run_called_again_does_nothing(uninterrupted, tmp_path):
    directory, state, _ = uninterrupted("line-1")
    left = as_killed_at(directory, 2 * EPOCH, tmp_path / "left")
    trainer, seen = RUNS["line-1"].trained(every_step(left))
    assert_same_bits(whole_state(trainer), state)
    assert not seen.steps
    assert not seen.epochs


def test_resumed_call_tells_how_many_epochs_are_still_to_come(tmp_path):
    def begin(*num_epochs, stop_at=None):
        """Train calls of so many epochs; return the first epoch and the number that each tells."""
        told = []

        def handler(event):
            if isinstance(event, ps.BeginTraining):
                told.append((event.epoch, event.num_epochs))
            if isinstance(event, ps.EndStep) and event.global_step + 1 == stop_at:
                trainer.stop()

        trainer = ps.Trainer(linear_program, optax.sgd(0.1), checkpoint=tmp_path, place="cpu")
        for count in num_epochs:
            trainer.train(linear_reader(), handler, num_epochs=count)
        return told

    # Epochs of three steps: stopped in the fourth, the second of the second call.
    assert begin(2, stop_at=99) == [(0, 2)]
    assert begin(2, 5, stop_at=10) == [(2, 0), (2, 5)]
    assert begin(2, 5) == [(3, 0), (3, 4)]
    assert begin(2, 5, 3) == [(7, 0), (7, 0), (7, 3)]


def test_checkpoint_between_two_calls_is_of_the_call_before_it(tmp_path):
    def script(*num_epochs):
        trainer = train_line(tmp_path)
        for count in num_epochs:
            trainer.save_checkpoint()
            trainer.train(linear_reader(), num_epochs=count)
        trainer.save_checkpoint()
        return trainer.global_step

    # Killed behind its first call, and then once more before it has come to the second.
    assert script(2) == 6
    assert script(2, 2) == 12
    train_line(tmp_path).save_checkpoint()
    assert script(2, 3) == 15


@pytest.mark.quick("2")
@pytest.mark.parametrize("num_calls", [1, 2])
def test_what_a_script_sets_before_the_call_that_is_resumed_is_the_checkpoints(
    num_calls, tmp_path, caplog
):
    pretrained = train_line()
    pretrained.parameters["fc_0/w"] = np.full([4, 1], 3.0, np.float32)
    pretrained.save_params(tmp_path / "pretrained")

    def run(checkpoint, *handlers):
        trainer = train_line(checkpoint)
        for number in range(num_calls):
            trainer.load_params(tmp_path / "pretrained") if not number else None
            trainer.update_scale = 0.5
            trainer.train(linear_reader(), [halve_scale(trainer), *handlers], num_epochs=2)
        return whole_state(trainer)

    def halve_scale(trainer):
        def handler(event):
            if isinstance(event, ps.EndEpoch):
                trainer.update_scale *= 0.5

        return handler

    config = every_step(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        run(config, lambda event: 1 / (getattr(event, "global_step", 0) != 6 * num_calls - 2))
    caplog.clear()
    assert_same_bits(run(config), run(None))
    assert "training goes on with the parameters and update_scale of the checkpoint" in caplog.text


def test_what_handlers_set_in_calls_that_are_over_does_not_reach_the_call_that_is_resumed(tmp_path):
    def run(checkpoint, *handlers):
        trainer = train_line(checkpoint)

        def set_at_the_end(event):
            if isinstance(event, ps.EndTraining):
                trainer.update_scale = 0.5
                trainer.parameters["fc_0/w"] = np.full([4, 1], 3.0, np.float32)

        trainer.train(linear_reader(), set_at_the_end, num_epochs=2)
        trainer.train(linear_reader(), handlers, num_epochs=2)
        return whole_state(trainer)

    config = every_step(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        run(config, lambda event: 1 / (getattr(event, "global_step", 0) != 10))
    assert_same_bits(run(config), run(None))


def test_what_is_set_after_a_resume_is_tested_with(tmp_path):
    train_line(tmp_path).train(linear_reader())
    trainer = train_line(tmp_path)
    before = trainer.test(linear_reader())
    trainer.parameters["fc_0/w"] = np.full([4, 1], 3.0, np.float32)
    assert trainer.test(linear_reader()) != before
    trainer.train(linear_reader())  # was over: another call goes on from what is set
    trainer.parameters["fc_0/w"] = np.full([4, 1], 3.0, np.float32)
    after = trainer.test(linear_reader())
    trainer.train(linear_reader(), lambda event: trainer.stop())
    assert trainer.test(linear_reader()) == after != before

"""`on_non_finite="roll_back"`: back to the newest good checkpoint, and on with the next batch."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock.trainer._in_flight import CHECK_EVERY, MAX_ROLL_BACKS, MAX_STEPS_IN_FLIGHT
from tests.networks import (
    PLACES,
    PLACES_AND_CALLS,
    Recorder,
    assert_same_bits,
    compile_warnings,
    eight_devices,
    host,
    one_device,
)
from tests.trainer.poisoned import POISONED, batches, bent, is_finite, program, rooted, sound


def rolling(folder, place=one_device, steps_per_call=1, **checkpoint):
    return ps.Trainer(
        program,
        optax.adam(0.05),
        place=place(),
        steps_per_call=steps_per_call,
        on_non_finite="roll_back",
        checkpoint=ps.CheckpointConfig(directory=folder, **checkpoint),
    )


def read_losses(event):
    """Read the loss of every step, so that a bad one is found at once."""
    if isinstance(event, ps.EndStep):
        _ = event.metrics


def roll_backs(caplog):
    return [line for line in compile_warnings(caplog) if "rolled back" in line]


def test_roll_back_without_a_folder_is_refused():
    with pytest.raises(ValueError, match="on_non_finite got") as caught:
        ps.Trainer(program, optax.sgd(0.1), on_non_finite="roll_back")
    assert str(caught.value) == (
        "on_non_finite got 'roll_back' without checkpoints, expected checkpoint=... beside it: it "
        "returns to the last of them."
    )


@PLACES
def test_bad_step_that_is_read_returns_to_the_checkpoint_before_it(place, tmp_path, caplog):
    trainer, recorder = rolling(tmp_path, place, save_interval_steps=3), Recorder()
    trainer.train(batches(10, {7: bent}), [read_losses, recorder])
    assert roll_backs(caplog) == [
        "a loss of nan at global step 7: rolled back to the state of global step 6; training goes "
        "on with the next batch (roll-back 1 of at most 10)"
    ]
    assert len(recorder.of(ps.EndStep)) == trainer.global_step == 10
    assert is_finite(trainer)


@PLACES_AND_CALLS
def test_state_after_a_roll_back_is_the_checkpoints_and_is_trained_with_the_next_batches(
    place, steps_per_call, tmp_path
):
    # Steps 0 to 3, a checkpoint, 4 to 7 of which 5 is bad, 8 to 11.
    trainer = rolling(tmp_path / "a", place, steps_per_call, save_interval_steps=4)
    bad_step = {1: 4, 4: 5}[steps_per_call]
    trainer.train(batches(12, {bad_step: bent}), read_losses)
    expected = ps.Trainer(program, optax.adam(0.05), place=place(), steps_per_call=steps_per_call)
    resumed_with = {1: 5, 4: 8}[steps_per_call]
    expected.train([b for n, b in enumerate(batches(12)) if n < 4 or n >= resumed_with])
    variables = lambda trainer: host(trainer._engine.state[1:3])  # noqa: E731
    assert_same_bits(variables(trainer), variables(expected))


@POISONED
def test_bad_step_that_nobody_reads_is_rolled_back_too(
    place, steps_per_call, poison, tmp_path, caplog
):
    trainer = rolling(tmp_path, place, steps_per_call)
    trainer.train(batches(9))
    trainer.train(batches(9, {5: poison}), num_epochs=2)
    warnings = roll_backs(caplog)
    # On one device the second epoch is in flight when the first is found bad: it is given up too.
    assert len(warnings) == (1 if place is one_device else 2)
    assert "in global steps 9 to 17: rolled back to the state of global step 9;" in warnings[0]
    assert is_finite(trainer)


@pytest.mark.slow
def test_newest_checkpoint_before_the_bad_step_is_used_however_late_it_is_found(tmp_path, caplog):
    trainer = rolling(tmp_path, save_interval_steps=10, max_to_keep=3)
    trainer.train(lambda: iter(batches(CHECK_EVERY + 60, {55: bent})))
    [warning] = roll_backs(caplog)
    assert "rolled back to the state of global step 50; training goes on" in warning
    assert is_finite(trainer)


@pytest.mark.slow
def test_first_step_that_is_bad_returns_to_the_initial_state(tmp_path, caplog):
    trainer = rolling(tmp_path)
    initial = host(trainer._engine.state.variables)
    seen = []

    def look(event):
        if isinstance(event, ps.BeginStep):
            seen.append(host(trainer._engine.state.variables))

    trainer.train(batches(3, {0: bent}), [read_losses, look])
    assert_same_bits(seen[1], initial)
    assert "rolled back to the state of global step 0" in roll_backs(caplog)[0]


@pytest.mark.slow
def test_epochs_mean_counts_from_the_roll_back(tmp_path):
    trainer, recorder = rolling(tmp_path), Recorder()
    trainer.train(batches(6, {2: bent}), [read_losses, recorder])
    steps = [event.metrics["loss"] for event in recorder.of(ps.EndStep)]
    mean = recorder.of(ps.EndEpoch)[0].metrics["loss"]
    assert mean == pytest.approx(np.mean(steps[3:]), rel=1e-6)


@pytest.mark.slow
@PLACES
def test_roll_backs_are_limited_and_the_error_says_how_many_there_were(place, tmp_path, caplog):
    trainer, recorder = rolling(tmp_path, place), Recorder()
    with pytest.raises(ps.NonFiniteError) as caught:
        trainer.train([sound(), *[bent()] * 30], [read_losses, recorder])
    assert str(caught.value).startswith(
        f"Trainer got a loss of nan at global step {MAX_ROLL_BACKS + 1}, after {MAX_ROLL_BACKS} "
        "roll-backs in this call of train, expected a finite one. "
    )
    assert len(roll_backs(caplog)) == MAX_ROLL_BACKS
    assert recorder.lines[-1] == "EndTraining failed"


@pytest.mark.slow
def test_run_that_rolled_back_resumes(tmp_path):
    whole = rolling(tmp_path / "whole", save_interval_steps=2)
    whole.train(batches(8, {3: bent}), read_losses, num_epochs=2)
    parts = rolling(tmp_path / "parts", save_interval_steps=2)
    stop = Recorder("EndStep 1 4", lambda event: parts.stop())
    parts.train(batches(8, {3: bent}), [read_losses, stop], num_epochs=2)
    resumed = rolling(tmp_path / "parts", save_interval_steps=2)
    resumed.train(batches(8, {3: bent}), read_losses, num_epochs=2)
    assert resumed.global_step == whole.global_step == 16
    assert_same_bits(host(resumed._engine.state), host(whole._engine.state))


@pytest.mark.slow
def test_bad_gradient_at_the_very_end_is_rolled_back_before_the_last_checkpoint(tmp_path, caplog):
    trainer = rolling(tmp_path, eight_devices, save_interval_steps=4)
    trainer.train(batches(8, {7: rooted}))
    assert is_finite(trainer)
    assert len(roll_backs(caplog)) == 1
    again = rolling(tmp_path, eight_devices, save_interval_steps=4)
    assert_same_bits(host(again._engine.state.variables), host(trainer._engine.state.variables))


class LateReader:
    """Reads each step's metrics at the next one, as the stock handlers do, from a step on."""

    def __init__(self, first_step=0):
        self.losses, self._last, self._first_step = [], None, first_step

    def __call__(self, event):
        if isinstance(event, ps.EndStep) and event.global_step >= self._first_step:
            if self._last is not None:
                self.losses.append(float(self._last.metrics["loss"]))
            self._last = event


def test_bad_step_that_is_read_a_step_late_stops_at_once():
    late = LateReader()
    trainer = ps.Trainer(program, optax.sgd(0.1))
    with pytest.raises(ps.NonFiniteError, match="at global step 5"):
        trainer.train(batches(40, {5: bent}), late)
    assert sum(not np.isfinite(loss) for loss in late.losses) == 1


@pytest.mark.slow
def test_loss_of_a_state_that_was_given_up_is_read_late_and_not_rolled_back_again(tmp_path, caplog):
    trainer = rolling(tmp_path)
    # The flag of the steps before 120 is read after step 131 is launched, from the state of step
    # 130; the loss of that step, nan as well, is read in the next.
    late = LateReader(first_step=CHECK_EVERY + MAX_STEPS_IN_FLIGHT - 2)
    trainer.train(lambda: iter(batches(CHECK_EVERY + 40, {100: bent})), late)
    assert not np.isfinite(late.losses[0])
    assert len(roll_backs(caplog)) == 1
    assert is_finite(trainer)

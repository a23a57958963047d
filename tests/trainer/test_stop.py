"""`on_non_finite="stop"`: what is found, when, and what the error says."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.trainer._in_flight import CHECK_EVERY, MAX_STEPS_IN_FLIGHT
from tests.networks import (
    PLACES,
    PLACES_AND_CALLS,
    STEPS_PER_CALL,
    Recorder,
    eight_devices,
    linear_data,
    linear_program,
    one_device,
)
from tests.trainer.poisoned import batches, bent, infinite, program, rooted, sound

ADVICE = (
    "Look for an id or a label out of range (they give nan), the log of zero or a division by "
    "zero; else lower the learning rate, or clip gradients (optax.clip_by_global_norm). "
    "trainer.replay(reader) runs the step again and shows the line, the id or the label; "
    "Trainer(..., on_non_finite='skip') leaves such updates out."
)


def error_of(trainer, reader, handlers=(), num_epochs=1):
    """Train until the guard stops it; return what it said, and the events."""
    recorder = Recorder()
    with pytest.raises(ps.NonFiniteError) as caught:
        trainer.train(reader, [*handlers, recorder], num_epochs=num_epochs)
    assert recorder.lines[-1] == "EndTraining failed"
    assert recorder.events[-1].error is caught.value
    return str(caught.value), recorder


def range_named(text):
    """Return the first and the last step that an error names."""
    numbers = re.match(
        r"Trainer got a loss that is not finite in global steps (\d+) to (\d+), expected", text
    )
    assert numbers, text
    return int(numbers[1]), int(numbers[2])


@PLACES_AND_CALLS
def test_nan_at_a_known_step_is_found_at_the_epochs_end_with_range_metrics_and_parameters(
    place, steps_per_call
):
    trainer = ps.Trainer(program, optax.sgd(0.1), place=place(), steps_per_call=steps_per_call)
    trainer.train(batches(3))
    text, recorder = error_of(trainer, batches(9, {5: bent}))
    # The error of the bad batch itself is finite, that of those after it is not.
    assert text == (
        "Trainer got a loss that is not finite in global steps 3 to 11, expected a finite one. "
        "Metrics of this epoch that are not finite: 'error', 'loss'. The parameters followed in "
        "'batch_norm_0/mean', 'batch_norm_0/variance', 'batch_norm_0/bias', 'batch_norm_0/scale', "
        "'fc_0/b' and 3 more. " + ADVICE
    )
    assert len(recorder.of(ps.EndStep)) == 9


@pytest.mark.slow
@PLACES_AND_CALLS
def test_nan_is_found_within_one_interval_of_launches(place, steps_per_call):
    trainer = ps.Trainer(program, optax.sgd(0.1), place=place(), steps_per_call=steps_per_call)
    steps_of_interval = CHECK_EVERY * steps_per_call
    text, recorder = error_of(trainer, lambda: iter([bent()] + [sound()] * 3 * steps_of_interval))
    assert range_named(text) == (0, steps_of_interval - 1)
    in_flight = (MAX_STEPS_IN_FLIGHT + 1) * steps_per_call
    assert len(recorder.of(ps.EndStep)) <= steps_of_interval + in_flight


@STEPS_PER_CALL
def test_nan_that_a_handler_reads_names_its_step_and_its_launch_is_the_last(steps_per_call):
    trainer = ps.Trainer(program, optax.sgd(0.1), place=one_device(), steps_per_call=steps_per_call)
    seen = []
    read = lambda event: isinstance(event, ps.EndStep) and seen.append(event.metrics["loss"])  # noqa: E731
    text, _ = error_of(trainer, batches(12, {5: bent}), [read])
    assert text.startswith("Trainer got a loss of nan at global step 5, expected a finite one. ")
    assert np.isfinite(seen[:5]).all()
    assert len(seen) == (6 if steps_per_call == 1 else 8)


@PLACES_AND_CALLS
def test_nan_in_the_gradient_of_the_last_step_alone_is_found(place, steps_per_call):
    trainer = ps.Trainer(program, optax.sgd(0.1), place=place(), steps_per_call=steps_per_call)
    text, _ = error_of(trainer, batches(8, {7: rooted}))
    assert "global steps 0 to 7" in text
    assert "The parameters followed in" in text


def test_nan_in_the_gradient_of_a_parameter_that_no_later_loss_sees_is_found():
    def seldom_used():
        row = layers.create_parameter([1, 1], name="row")
        used = layers.data("used", shape=[1])
        return linear_program() + layers.mean(jnp.where(used > 0, jnp.sqrt(row * used), 0.0))

    trainer = ps.Trainer(seldom_used, optax.sgd(0.1), place=one_device())
    used = [{**linear_data(8), "used": np.zeros((8, 1), np.float32)}] * 4
    text, _ = error_of(trainer, used)
    assert "'row'" in text


@pytest.mark.slow
@PLACES
def test_bad_objective_is_named_with_its_metrics_and_the_sound_one_is_not(place):
    objectives = {
        "sound": ps.Objective(layers.scope("a")(linear_program), optax.sgd(0.1), updates="a"),
        "bent": ps.Objective(layers.scope("b")(program), optax.sgd(0.1), updates="b"),
    }
    trainer = ps.Trainer(objectives, place=place())
    text, _ = error_of(trainer, batches(6, {5: bent}))
    assert range_named(text) == (0, 5)
    assert "Metrics of this epoch that are not finite: 'bent/loss'. The parameters" in text
    assert "'b/fc_0/w'" in text
    assert "a/fc_0" not in text
    trainer = ps.Trainer(objectives, place=place())
    read = lambda event: isinstance(event, ps.EndStep) and event.metrics  # noqa: E731
    text, _ = error_of(trainer, batches(6, {3: bent}), [read])
    assert text.startswith("Trainer got a loss of 'bent' of nan at global step 3, expected")


def test_nan_is_found_when_training_is_stopped():
    trainer = ps.Trainer(program, optax.sgd(0.1), place=one_device())
    stop = Recorder("EndStep 0 3", lambda event: trainer.stop())
    assert range_named(error_of(trainer, batches(12, {2: bent}), [stop])[0]) == (0, 3)


@PLACES
def test_trainer_that_stopped_trains_again_when_its_parameters_are_set(place, tmp_path):
    trainer = ps.Trainer(program, optax.sgd(0.1), place=place())
    trainer.save_params(tmp_path)
    error_of(trainer, batches(6, {2: bent}))
    trainer.load_params(tmp_path)
    recorder = Recorder()
    trainer.train(batches(6), recorder)
    assert np.isfinite(recorder.of(ps.EndEpoch)[0].metrics["loss"])


def test_unknown_choice_suggests_the_nearest():
    with pytest.raises(ValueError, match="Trainer got on_non_finite=") as caught:
        ps.Trainer(program, optax.sgd(0.1), on_non_finite="rollback")
    assert str(caught.value) == (
        "Trainer got on_non_finite='rollback', expected one of 'stop', 'skip', 'roll_back'. Did "
        "you mean 'roll_back'?"
    )


@pytest.mark.parametrize(
    ("action", "place", "steps_per_call"),
    [
        pytest.param("stop", eight_devices, 4, id="stop"),
        pytest.param("skip", one_device, 1, id="skip", marks=pytest.mark.slow),
    ],
)
def test_guard_makes_no_implicit_transfer(action, place, steps_per_call):
    trainer = ps.Trainer(
        program,
        optax.sgd(0.1),
        place=place(),
        on_non_finite=action,
        steps_per_call=steps_per_call,
    )
    trainer.train(batches(9))
    with jax.transfer_guard("disallow"):
        trainer.train(batches(9), num_epochs=2)


def test_infinite_loss_is_named_as_such():
    trainer = ps.Trainer(program, optax.sgd(0.1), place=one_device())
    read = lambda event: isinstance(event, ps.EndStep) and event.metrics  # noqa: E731
    text, _ = error_of(trainer, batches(6, {2: infinite}), [read])
    assert re.match(r"Trainer got a loss of -?inf at global step 2, expected", text)

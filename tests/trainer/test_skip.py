"""`on_non_finite="skip"`: an update that is not finite is left out, as if without its batch."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, metrics
from penstock.trainer._in_flight import CHECK_EVERY
from tests import compiling
from tests.networks import (
    PLACES,
    PLACES_AND_CALLS,
    Recorder,
    assert_same_bits,
    compile_warnings,
    host,
    linear_program,
    linear_reader,
    one_device,
)
from tests.trainer.poisoned import (
    POISONED,
    batches,
    bent,
    infinite,
    is_finite,
    learnt,
    program,
    rooted,
    sound,
)

NUM_STEPS = 9
BAD = {2: bent, 3: rooted, 6: infinite}


def skipping(place=one_device, steps_per_call=1, program=program, **options):
    return ps.Trainer(
        program,
        optax.adam(0.05),
        place=place(),
        steps_per_call=steps_per_call,
        on_non_finite="skip",
        **options,
    )


@pytest.fixture(scope="module")
def runs():
    """Return by case what was learnt with bad batches, without them, and the events of both."""

    @functools.cache
    def run(case):
        made = []
        for bad in (BAD, {}):
            trainer, recorder = skipping(*case), Recorder()
            reader = [b for n, b in enumerate(batches(NUM_STEPS, bad)) if bad or n not in BAD]
            trainer.train(reader, recorder)
            made.append((trainer, recorder))
        return made

    return run


@PLACES_AND_CALLS
def test_run_with_bad_batches_learns_the_bits_of_a_run_without_them(runs, place, steps_per_call):
    (skipped, _), (without, _) = runs((place, steps_per_call))
    assert_same_bits(learnt(skipped), learnt(without))
    assert is_finite(skipped)


@PLACES_AND_CALLS
def test_skipped_steps_are_counted_read_as_they_were_and_left_out_of_the_mean(
    runs, place, steps_per_call
):
    bad, sound_run = runs((place, steps_per_call))
    for (trainer, _), num_skipped in ((bad, len(BAD)), (sound_run, 0)):
        state = trainer._engine.state
        assert int(state.num_skipped) == num_skipped
        assert int(state.step) == trainer.global_step == NUM_STEPS - len(BAD) + num_skipped
    mean, expected = (run[1].of(ps.EndEpoch)[0].metrics for run in (bad, sound_run))
    assert mean == expected
    assert np.isfinite(list(mean.values())).all()
    losses = [event.metrics["loss"] for event in bad[1].of(ps.EndStep)]
    finite = [number for number, loss in enumerate(losses) if np.isfinite(loss)]
    # A gradient that is not finite leaves the loss finite.
    assert finite == [n for n in range(NUM_STEPS) if BAD.get(n, sound) in (sound, rooted)]


@POISONED
def test_skipped_update_leaves_every_bit_but_the_counts(place, poison, steps_per_call):
    trainer = skipping(place, steps_per_call)
    trainer.train(batches(4))
    state = trainer.builder.reset_metrics(trainer._engine.state)  # as the next epoch begins
    before = host(state)
    trainer.train([poison()] * 4)
    after = host(trainer._engine.state)
    assert (after.step, after.num_skipped) == (before.step + 4, before.num_skipped + 4)
    counts = {"step": after.step, "num_skipped": after.num_skipped}
    assert_same_bits(after, before._replace(**counts))


@PLACES_AND_CALLS
def test_warning_names_the_steps_and_the_count_of_each_epoch(place, steps_per_call, caplog):
    trainer = skipping(place, steps_per_call)
    for bad in ({}, BAD, {4: bent}):
        trainer.train(batches(NUM_STEPS, bad))
    assert compile_warnings(caplog) == [
        "3 updates were skipped, a loss or gradient was not finite in global steps 9 to 17 "
        "(3 in all)",
        "1 update was skipped, a loss or gradient was not finite in global steps 18 to 26 "
        "(4 in all)",
    ]


@pytest.mark.slow
@PLACES_AND_CALLS
def test_run_of_which_everything_is_skipped_ends_within_an_interval(place, steps_per_call):
    trainer, recorder = skipping(place, steps_per_call), Recorder()
    with pytest.raises(ps.NonFiniteError) as caught:
        trainer.train([bent()] * (2 * CHECK_EVERY * steps_per_call), recorder)
    last = CHECK_EVERY * steps_per_call - 1
    assert str(caught.value).startswith(
        f"Trainer got no finite loss and gradients in global steps 0 to {last}: every update was "
        "skipped, expected a finite one. The parameters stayed finite. Look for"
    )
    assert recorder.lines[-1] == "EndTraining failed"


def test_run_of_short_epochs_of_which_everything_is_skipped_ends_too():
    trainer, recorder = skipping(), Recorder()
    with pytest.raises(ps.NonFiniteError, match="every update was skipped"):
        trainer.train([bent(), bent()], recorder, num_epochs=100)
    assert len(recorder.of(ps.EndStep)) < 30


def test_metric_that_raises_in_an_epoch_is_not_taken_for_one_without_a_finite_step():
    @dataclasses.dataclass(frozen=True)
    class Logarithm(metrics.Metric):
        total: jax.Array

        def compute(self):
            return math.log(float(self.total))

    def with_metric():
        return linear_program(), Logarithm(jnp.zeros(()))

    recorder = Recorder()
    skipping(program=with_metric).train(linear_reader(), recorder)
    with pytest.raises(ValueError, match="math domain error"):
        _ = recorder.of(ps.EndEpoch)[0].metrics


def test_epoch_without_a_finite_step_says_so_where_its_mean_is_read():
    trainer, recorder = skipping(), Recorder()
    trainer.train([bent(), bent()], recorder)
    with pytest.raises(ps.NonFiniteError) as caught:
        _ = recorder.of(ps.EndEpoch)[0].metrics
    assert str(caught.value) == (
        "epoch 0 got no finite loss and gradients, expected some: every update was skipped, and "
        "there is no mean of its metrics."
    )


SEVERAL = {
    "sound": ps.Objective(layers.scope("a")(linear_program), optax.sgd(0.1), updates="a"),
    "bent": ps.Objective(layers.scope("b")(program), optax.sgd(0.1), updates="b"),
}


@pytest.mark.slow
@PLACES
@compiling.as_users_do()
def test_bad_updates_of_one_objective_leave_those_of_the_other(place, caplog):
    trainer = ps.Trainer(SEVERAL, place=place(), on_non_finite="skip")
    trainer.train(batches(5, {1: bent, 2: rooted}))
    alone = ps.Trainer(SEVERAL["sound"].program_func, optax.sgd(0.1), place=place())
    alone.train(batches(5), feed_order=["x", "y"])
    for name, value in alone.parameters.items():
        np.testing.assert_array_equal(trainer.parameters[name], value)
    assert is_finite(trainer)
    assert compile_warnings(caplog) == [
        "2 updates were skipped, a loss or gradient was not finite in global steps 0 to 4 "
        "(2 in all)"
    ]


@pytest.mark.slow
def test_objective_that_is_always_skipped_beside_a_sound_one_is_no_end():
    trainer = ps.Trainer(SEVERAL, place=one_device(), on_non_finite="skip")
    trainer.train([bent()] * 40)
    assert int(jax.device_get(trainer._engine.state.num_skipped)) == 40


@pytest.mark.slow
def test_count_of_skipped_updates_goes_on_in_a_resumed_run(tmp_path, caplog):
    first = skipping(checkpoint=tmp_path)
    first.train(batches(6, {1: bent}))
    second = skipping(checkpoint=tmp_path)
    caplog.clear()
    second.train([])  # the first call of train, which had ended
    second.train(batches(6, {3: bent}))
    assert int(second._engine.state.num_skipped) == 2
    assert [line for line in compile_warnings(caplog) if "skipped" in line] == [
        "1 update was skipped, a loss or gradient was not finite in global steps 6 to 11 (2 in all)"
    ]

"""The trainer: steps in one launch, calls of train, arguments, schedules."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from tests.networks import (
    PLACES,
    Recorder,
    assert_same_bits,
    class_data,
    classifier,
    classifier_program,
    linear_data,
    linear_program,
    linear_reader,
    one_device,
    rich_program,
)


@pytest.mark.slow
@PLACES
def test_testing_and_saving_at_every_event_leave_training_as_it_is(place, tmp_path):
    trainers = [ps.Trainer(classifier_program, optax.adam(0.05), place=place()) for _ in range(2)]
    reader = readers.arrays(class_data(20), 8)

    def look(event):
        trainers[0].test(reader)
        trainers[0].save_params(tmp_path)

    trainers[0].train(reader, look, num_epochs=2)
    trainers[1].train(reader, num_epochs=2)
    assert_same_bits(*(dict(trainer.parameters) for trainer in trainers))


# Steps in one launch, and calls of train.

# Four steps a call are launches of one, one, four and one.
BATCHES = [class_data(size, seed=n) for n, size in enumerate((8, 3, 8, 8, 8, 8, 3))]


def parameters_after_training(steps_per_call):
    trainer = ps.Trainer(
        rich_program, optax.adam(0.05), place=one_device(), steps_per_call=steps_per_call
    )
    recorder = Recorder()
    trainer.train(BATCHES, recorder, num_epochs=2)
    losses = [event.metrics[0] for event in recorder.of(ps.EndStep)]
    return dict(trainer.parameters), losses, recorder.of(ps.EndEpoch)[1].metrics[0]


@pytest.fixture(scope="module")
def one_step_a_call():
    return parameters_after_training(1)


def test_steps_in_one_launch_give_the_bits_of_single_steps(one_step_a_call):
    assert_same_bits(parameters_after_training(4), one_step_a_call)


def test_two_calls_of_train_are_one_call_of_twice_the_epochs_bit_for_bit(one_step_a_call):
    trainer = ps.Trainer(rich_program, optax.adam(0.05), place=one_device())
    for _ in range(2):
        trainer.train(BATCHES)
    assert_same_bits(dict(trainer.parameters), one_step_a_call[0])


@PLACES
def test_infer_in_another_thread_gets_the_parameters_between_two_steps(place):
    trainer = ps.Trainer(classifier_program, optax.sgd(0.1), infer_func=classifier, place=place())
    batch, answers, is_over = class_data(8), [], threading.Event()

    def ask() -> None:
        try:
            while len(answers) < 100:
                answers.append(trainer.infer({"x": batch["x"]}))
        finally:
            is_over.set()

    def on_event(event):
        # Otherwise training may be over before the thread has begun.
        if isinstance(event, ps.EndStep) and is_over.is_set():
            trainer.stop()

    trainer.infer({"x": batch["x"]})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        trainer.train(lambda: itertools.repeat(batch), on_event)
        asked.result()
    # The network learns: the answers are those of many steps.
    assert len({answer.tobytes() for answer in answers}) > 10


@PLACES
def test_parameters_set_in_a_handler_are_trained_from_there(place):
    trainer = ps.Trainer(linear_program, optax.sgd(0.0), place=place())

    def reset(event):
        trainer.parameters["fc_0/w"] = np.full((4, 1), event.step)
        trainer.parameters["fc_0/b"] = np.zeros(1)

    recorder = Recorder("EndStep 0 1", reset)
    trainer.train([linear_data(8)] * 4, recorder)
    losses = [event.metrics for event in recorder.of(ps.EndStep)]
    data = linear_data(8)
    expected = np.mean((data["x"].sum(1, keepdims=True) - data["y"]) ** 2)
    np.testing.assert_allclose(losses[2:], expected, rtol=1e-5)
    assert losses[0] == losses[1] != losses[2]


# Arguments.


NO_COUNTS = [-1, 1.5, True, "2", None]


@pytest.mark.parametrize("count", NO_COUNTS)
def test_what_is_no_count_is_refused_before_any_event(count):
    expected = f"got {count!r}, expected an integer"
    for steps_per_call in (count, 0):
        with pytest.raises(ValueError, match=f"steps_per_call got {steps_per_call!r}, expected an"):
            ps.Trainer(linear_program, optax.sgd(0.1), steps_per_call=steps_per_call)
    with pytest.raises(ValueError, match=f"schedule of 'generator' {expected}"):
        ps.Trainer(OBJECTIVES, schedule={"generator": count}, place=one_device())
    trainer, recorder = ps.Trainer(linear_program, optax.sgd(0.1), place=one_device()), Recorder()
    with pytest.raises(ValueError, match=f"num_epochs {expected}"):
        trainer.train(linear_reader(), recorder, num_epochs=count)
    assert not recorder.events


def test_numpy_integers_are_counts():
    trainer = ps.Trainer(
        linear_program, optax.sgd(0.1), place=one_device(), steps_per_call=np.int64(2)
    )
    trainer.train(linear_reader(), num_epochs=np.int32(2))
    assert (trainer.epoch, trainer.global_step) == (2, 6)


def test_what_an_optimizer_is_not_is_refused():
    for wrong, got in ((0.1, "float"), (lambda: 0.1, "float"), ("adam", "str")):
        with pytest.raises(
            TypeError, match=f"optimizer got {got}, expected an optax transformation"
        ):
            ps.Trainer(linear_program, wrong)


def test_trainer_without_an_optimizer_tests_and_refuses_to_train_before_reading():
    trainer = ps.Trainer(linear_program, place=one_device())
    assert trainer.test(linear_reader()) > 0
    read = []
    with pytest.raises(ps.ProgramError) as caught:
        trainer.train(lambda: read.append(True))
    assert str(caught.value) == (
        "the train program of 'train' got no optimizer, expected one such as optax.adam(1e-3)."
    )
    assert not read


# Schedules.


def countdown(name):
    """Return a program that, by gradient descent of rate 1, counts a parameter down by 1."""

    def program():
        value = layers.create_parameter([1], name=name)
        return layers.mean(layers.data("x", shape=[1])) * 0 + jnp.sum(value)

    return program


OBJECTIVES = {
    name: ps.Objective(countdown(name), optax.sgd(1.0), updates=name)
    for name in ("discriminator", "generator")
}


@pytest.mark.parametrize(
    ("schedule", "updates"),
    [
        (None, (1, 1)),
        ({"discriminator": 1, "generator": 2}, (1, 2)),
        ({"generator": 3, "discriminator": 1}, (1, 3)),
        ({"generator": 1}, (0, 1)),
        ({"discriminator": 0, "generator": 1}, (0, 1)),
    ],
)
def test_schedule_says_how_many_updates_each_objective_makes_of_a_batch(schedule, updates):
    trainer = ps.Trainer(OBJECTIVES, schedule=schedule, place=one_device())
    recorder = Recorder()
    trainer.train([{"x": np.ones((2, 1), np.float32)}] * 4, recorder, num_epochs=2)
    values = [float(trainer.parameters[name][0]) for name in OBJECTIVES]
    assert values == [-8 * count for count in updates]
    assert trainer.global_step == 8
    scheduled = {name for name, count in zip(OBJECTIVES, updates, strict=True) if count}
    for event in (recorder.of(ps.EndStep)[0], recorder.of(ps.EndEpoch)[0]):
        assert set(event.metrics) == scheduled


def test_schedule_with_an_unknown_objective_suggests_the_nearest():
    with pytest.raises(ps.UnknownNameError) as caught:
        ps.Trainer(OBJECTIVES, schedule={"generater": 1}, place=one_device())
    assert str(caught.value) == (
        "schedule got 'generater', expected one of 'discriminator', 'generator'. "
        "Did you mean 'generator'?"
    )


def test_schedule_without_an_update_is_refused():
    for schedule in ({}, {"generator": 0}):
        with pytest.raises(ValueError, match="expected at least one update"):
            ps.Trainer(OBJECTIVES, schedule=schedule, place=one_device())


def test_objective_without_an_optimizer_is_refused_before_reading_unless_out_of_the_schedule():
    objectives = {**OBJECTIVES, "watch": ps.Objective(countdown("generator"))}
    trainer, read = ps.Trainer(objectives, place=one_device()), []
    with pytest.raises(ps.ProgramError, match="the train program of 'watch' got no optimizer"):
        trainer.train(lambda: read.append(True))
    assert not read
    trainer = ps.Trainer(objectives, schedule={"generator": 1}, place=one_device())
    trainer.train([{"x": np.ones((2, 1), np.float32)}])
    assert set(trainer.test([{"x": np.ones((2, 1), np.float32)}])) == set(objectives)


# Exceptions of a program function.


@pytest.mark.parametrize("mode", ["train", "test"])
def test_exception_in_a_program_function_keeps_type_and_traceback_and_names_the_program(mode):
    def broken_program():
        return linear_program() if layers.is_training() != (mode == "train") else {}["missing"]

    with pytest.raises(KeyError) as caught:
        ps.Trainer(broken_program, optax.sgd(0.1), place=one_device())
    assert caught.value.args == ("missing",)
    assert f"While tracing the {mode} program of broken_program." in caught.value.__notes__
    assert caught.traceback[-1].name == "broken_program"

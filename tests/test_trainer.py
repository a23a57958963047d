"""The trainer: its arguments, what `test` counts, steps in one launch, seeds, schedules."""

import functools
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
    assert_close,
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

# trainer.test.


@pytest.fixture(scope="module")
def tested():
    """Return what gives means over 75 examples by place and batch size, and the parameters."""
    data = class_data(75)
    trained = ps.Trainer(rich_program, optax.adam(0.05), place=one_device())
    trained.train(readers.arrays(data, 25), num_epochs=3)

    @functools.cache
    def test(place, batch_size):
        trainer = ps.Trainer(rich_program, place=place())
        trainer.parameters.update(trained.parameters)
        return trainer.test(readers.arrays(data, batch_size))

    return test, dict(trained.parameters)


@pytest.mark.slow
def test_test_gives_the_mean_over_all_examples_computed_by_hand(tested):
    test, p = tested
    loss, accuracy, mean_probabilities = test(one_device, 75)
    data = class_data(75)
    hidden = data["x"] @ p["fc_0/w"]
    hidden = (hidden - p["batch_norm_0/mean"]) / np.sqrt(p["batch_norm_0/variance"] + 1e-5)
    hidden = np.maximum(hidden * p["batch_norm_0/scale"] + p["batch_norm_0/bias"], 0)
    logits = hidden @ p["fc_1/w"] + p["fc_1/b"]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    of_label = np.take_along_axis(probabilities, data["label"], 1)
    np.testing.assert_allclose(loss, -np.log(of_label).mean(), rtol=1e-5)
    assert accuracy == pytest.approx(np.mean(logits.argmax(1) == data["label"][:, 0]))
    np.testing.assert_allclose(mean_probabilities, probabilities.mean(0), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 64, 75])
@PLACES
def test_test_gives_the_same_means_for_every_batch_size_and_place(tested, place, batch_size):
    test, _ = tested
    assert_close(test(place, batch_size), test(one_device, 75), rtol=1e-6)


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


# Steps in one launch.


def parameters_after_training(steps_per_call, place=one_device, program=rich_program):
    trainer = ps.Trainer(program, optax.adam(0.05), place=place(), steps_per_call=steps_per_call)
    recorder = Recorder()
    trainer.train(readers.arrays(class_data(45), 8), recorder, num_epochs=2)
    losses = [event.metrics[0] for event in recorder.of(ps.EndStep)]
    return dict(trainer.parameters), losses, recorder.of(ps.EndEpoch)[1].metrics[0]


@pytest.fixture(scope="module")
def one_step_a_call():
    return parameters_after_training(1)


def test_steps_in_one_launch_give_the_bits_of_single_steps(one_step_a_call):
    # Six batches, the last one short: a launch of four steps and two of one.
    assert_same_bits(parameters_after_training(4), one_step_a_call)


@pytest.mark.slow
def test_short_batches_in_the_middle_of_a_launch_count_by_their_examples():
    batches = [class_data(size, seed=size) for size in (8, 3, 8, 8, 3)]
    results = []
    for steps_per_call in (1, 3):
        trainer = ps.Trainer(
            classifier_program, optax.adam(0.05), place=one_device(), steps_per_call=steps_per_call
        )
        recorder = Recorder()
        trainer.train(batches, recorder)
        steps = [event.metrics for event in recorder.of(ps.EndStep)]
        results.append((steps, recorder.of(ps.EndEpoch)[0].metrics, dict(trainer.parameters)))
    assert_same_bits(*results)


# Calls of train.


def test_two_calls_of_train_are_one_call_of_twice_the_epochs_bit_for_bit(one_step_a_call):
    trainer = ps.Trainer(rich_program, optax.adam(0.05), place=one_device())
    for _ in range(2):
        trainer.train(readers.arrays(class_data(45), 8))
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


@pytest.mark.parametrize("steps_per_call", [0, -1, 1.5, True, "2", None])
def test_steps_per_call_that_is_no_positive_integer_is_refused(steps_per_call):
    with pytest.raises(ValueError, match=f"steps_per_call got {steps_per_call!r}, expected an"):
        ps.Trainer(linear_program, optax.sgd(0.1), steps_per_call=steps_per_call)


@pytest.mark.parametrize("num_epochs", [-1, 1.5, True, "2", None])
def test_num_epochs_that_is_no_count_is_refused_before_any_event(num_epochs):
    trainer, recorder = ps.Trainer(linear_program, optax.sgd(0.1), place=one_device()), Recorder()
    with pytest.raises(ValueError, match=f"num_epochs got {num_epochs!r}, expected an integer"):
        trainer.train(linear_reader(), recorder, num_epochs=num_epochs)
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
    metrics = recorder.of(ps.EndStep)[0].metrics
    assert set(metrics) == {name for name, count in zip(OBJECTIVES, updates, strict=True) if count}


def test_schedule_with_an_unknown_objective_suggests_the_nearest():
    with pytest.raises(ps.UnknownNameError) as caught:
        ps.Trainer(OBJECTIVES, schedule={"generater": 1}, place=one_device())
    assert str(caught.value) == (
        "schedule got 'generater', expected one of 'discriminator', 'generator'. "
        "Did you mean 'generator'?"
    )


@pytest.mark.parametrize("count", [-1, 1.0, True, None])
def test_schedule_with_what_is_no_count_is_refused(count):
    with pytest.raises(ValueError, match=f"schedule of 'generator' got {count!r}, expected an"):
        ps.Trainer(OBJECTIVES, schedule={"generator": count}, place=one_device())


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


def test_exception_in_a_program_function_keeps_type_and_traceback_and_names_the_program():
    def broken_program():
        layers.data("x", shape=[4])
        return {}["missing"]

    with pytest.raises(KeyError) as caught:
        ps.Trainer(broken_program, optax.sgd(0.1), place=one_device())
    assert caught.value.args == ("missing",)
    assert "While tracing the train program of broken_program." in caught.value.__notes__
    assert caught.traceback[-1].name == "broken_program"


def test_exception_in_the_test_program_alone_names_it():
    def broken_program():
        if not layers.is_training():
            raise LookupError
        return linear_program()

    with pytest.raises(LookupError) as caught:
        ps.Trainer(broken_program, optax.sgd(0.1), place=one_device())
    assert "While tracing the test program of broken_program." in caught.value.__notes__

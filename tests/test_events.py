"""Events: their order, their numbers, their metrics, and what handlers may do at each."""

import collections
import functools
import threading

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.events import combine_handlers
from tests.networks import Recorder, linear_data, linear_program, linear_reader, one_device

EPOCH = [
    "BeginEpoch {0}",
    "BeginStep {0} 0",
    "EndStep {0} 0",
    "BeginStep {0} 1",
    "EndStep {0} 1",
    "BeginStep {0} 2",
    "EndStep {0} 2",
    "EndEpoch {0}",
]
EPOCH_BY_TWO_STEPS = [
    "BeginEpoch {0}",
    "BeginStep {0} 0",
    "BeginStep {0} 1",
    "EndStep {0} 0",
    "EndStep {0} 1",
    "BeginStep {0} 2",  # the remainder, in a launch of its own
    "EndStep {0} 2",
    "EndEpoch {0}",
]


@pytest.fixture(scope="module")
def trainers():
    return {
        steps: ps.Trainer(linear_program, optax.sgd(0.01), place=one_device(), steps_per_call=steps)
        for steps in (1, 2)
    }


@pytest.fixture(params=[1, 2], ids=["one step a call", "two steps a call"])
def trainer(trainers, request):
    trainer = trainers[request.param]
    trainer._status.epoch = trainer._status.global_step = 0
    return trainer


def epoch_lines(trainer, epoch):
    lines = EPOCH if trainer.steps_per_call == 1 else EPOCH_BY_TWO_STEPS
    return [line.format(epoch) for line in lines]


def up_to(lines, last):
    return lines[: lines.index(last) + 1]


def test_events_of_two_ragged_epochs_have_their_order_and_numbers_of_steps_and_examples(trainer):
    recorder = Recorder()
    trainer.train(linear_reader(), recorder, num_epochs=2)
    ends, epochs = recorder.of(ps.EndStep), recorder.of(ps.EndEpoch)
    assert recorder.lines == [
        "BeginTraining 0",
        *epoch_lines(trainer, 0),
        *epoch_lines(trainer, 1),
        "EndTraining completed",
    ]
    assert [event.global_step for event in ends] == list(range(6))
    assert [event.global_step for event in recorder.of(ps.BeginStep)] == list(range(6))
    assert [event.num_examples for event in ends] == [4, 4, 2] * 2
    assert [(e.num_steps, e.num_examples, e.global_step) for e in epochs] == [
        (3, 10, 3),
        (3, 10, 6),
    ]
    begin, end = recorder.events[0], recorder.events[-1]
    assert (begin.epoch, begin.num_epochs, begin.global_step) == (0, 2, 0)
    assert (end.reason, end.error, end.global_step) == ("completed", None, 6)
    assert [(e.global_step, e.num_steps) for e in recorder.of(ps.BeginEpoch)] == [(0, 3), (3, 3)]
    assert_goes_on(trainer)


def test_begin_epoch_of_a_reader_without_length_has_no_number_of_steps(trainer):
    recorder = Recorder()
    trainer.train(lambda: iter(linear_reader()), recorder)
    assert recorder.of(ps.BeginEpoch)[0].num_steps is None


def test_train_of_no_epoch_fires_only_its_ends(trainer):
    recorder = Recorder()
    trainer.train(linear_reader(), recorder, num_epochs=0)
    assert recorder.lines == ["BeginTraining 0", "EndTraining completed"]


@pytest.mark.parametrize("at", ["BeginTraining 0", *EPOCH])
def test_stop_ends_after_the_end_step_of_its_launch_and_reads_no_more(trainer, at):
    at, reads = at.format(0), []
    recorder = Recorder(at, lambda event: trainer.stop())
    trainer.train(lambda: reads.append(1) or linear_reader(), recorder, num_epochs=2)
    last = at.replace("BeginStep", "EndStep")
    if trainer.steps_per_call == 2 and last == "EndStep 0 0":
        last = "EndStep 0 1"
    lines = ["BeginTraining 0", *epoch_lines(trainer, 0)]
    assert recorder.lines == [*up_to(lines, last), "EndTraining stopped"]
    num_steps = len(recorder.of(ps.EndStep))
    assert trainer.global_step == recorder.events[-1].global_step == num_steps
    assert len(reads) == (num_steps > 0)


def test_stop_outside_train_has_no_effect_on_the_next_call(trainer):
    recorder = Recorder("EndTraining completed", lambda event: trainer.stop())
    trainer.train(linear_reader(), recorder)
    trainer.stop()
    trainer.train(linear_reader(), recorder)
    assert recorder.lines[-2:] == ["EndEpoch 1", "EndTraining completed"]


def test_stop_in_the_middle_of_a_pass_closes_the_readers_iterator(trainer):
    closed = []

    def read():
        try:
            yield from linear_reader(40)
        finally:
            closed.append(True)

    trainer.train(read, Recorder("EndStep 0 0", lambda event: trainer.stop()))
    assert closed == [True]


@pytest.mark.parametrize(
    "at", ["BeginTraining 0", "BeginEpoch 0", "BeginStep 0 1", "EndStep 0 1", "EndEpoch 0"]
)
def test_exception_of_a_handler_ends_training_and_reaches_the_caller(trainer, at):
    def fail(event):
        raise LookupError("handler")

    recorder, behind = Recorder(at, fail), Recorder()
    with pytest.raises(LookupError) as caught:
        trainer.train(linear_reader(), [recorder, behind], num_epochs=2)
    assert recorder.lines[-2:] == [at, "EndTraining failed"]
    is_seen_behind = at.startswith("EndStep")
    assert behind.lines == [*recorder.lines[: -1 if is_seen_behind else -2], "EndTraining failed"]
    assert recorder.events[-1].error is caught.value
    assert any("Raised by the event handler" in note for note in caught.value.__notes__)
    assert_goes_on(trainer)


def test_exception_of_a_reader_ends_training_after_the_batches_before_it(trainer):
    def read():
        yield from linear_reader(8)
        raise LookupError("reader")

    recorder = Recorder()
    with pytest.raises(LookupError) as caught:
        trainer.train(read, recorder)
    assert recorder.lines == [
        "BeginTraining 0",
        *up_to(epoch_lines(trainer, 0), "EndStep 0 1"),
        "EndTraining failed",
    ]
    assert recorder.events[-1].error is caught.value
    assert_goes_on(trainer)


def assert_goes_on(trainer):
    """Train another epoch and check that it is numbered on and learns."""
    epoch, global_step = trainer.epoch, trainer.global_step
    before = trainer.parameters["fc_0/w"]
    recorder = Recorder()
    trainer.train(linear_reader(), recorder)
    assert recorder.lines[1:-1] == epoch_lines(trainer, epoch)
    assert (recorder.events[0].epoch, recorder.events[0].global_step) == (epoch, global_step)
    assert [event.global_step - global_step for event in recorder.of(ps.EndStep)] == [0, 1, 2]
    assert np.isfinite(recorder.of(ps.EndEpoch)[0].metrics)
    assert not np.array_equal(before, trainer.parameters["fc_0/w"])


# Metrics.


def test_metrics_read_later_are_of_their_step_and_epoch_alone_after_a_stopped_one_too(trainer):
    trainer.train(linear_reader(), Recorder("EndStep 0 1", lambda event: trainer.stop()))
    recorder = Recorder()
    trainer.train(linear_reader(), recorder, num_epochs=3)
    trainer.train(linear_reader(), num_epochs=1)
    epochs, steps = recorder.of(ps.EndEpoch), recorder.of(ps.EndStep)
    for epoch in epochs:
        of_epoch = [step for step in steps if step.epoch == epoch.epoch]
        total = sum(step.metrics * step.num_examples for step in of_epoch)
        np.testing.assert_allclose(epoch.metrics, total / 10, rtol=1e-6)
    assert len({epoch.metrics for epoch in epochs}) == 3


def test_fetch_metrics_set_to_false_leaves_no_metrics_for_that_step_alone(trainer):
    def on_event(event):
        if isinstance(event, ps.BeginStep):
            event.fetch_metrics = event.step != 1

    recorder = Recorder()
    trainer.train(linear_reader(), [on_event, recorder])
    assert [step.metrics is None for step in recorder.of(ps.EndStep)] == [False, True, False]
    assert isinstance(recorder.of(ps.EndEpoch)[0].metrics, float)


Metrics = collections.namedtuple("Metrics", ["loss", "spread", "prediction"])
STRUCTURES = {
    "tuple": (lambda loss, spread, row: (loss, spread, row), tuple),
    "list": (lambda loss, spread, row: [loss, spread, row], list),
    "namedtuple": (Metrics, Metrics),
    "dict": (lambda loss, spread, row: {"z": spread, "loss": loss, "a": row}, dict),
}


@pytest.mark.quick("dict", "tuple")
@pytest.mark.parametrize("kind", list(STRUCTURES))
def test_metrics_have_the_structure_that_the_program_function_returned(kind):
    make, expected = STRUCTURES[kind]

    def program():
        prediction = layers.fc(layers.data("x", shape=[4]), size=1, bias_attr=False)
        loss = layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
        return make(loss, layers.mean(prediction**2), prediction)

    trainer = ps.Trainer(program, optax.sgd(0.01), place=one_device())
    recorder = Recorder()
    trainer.train(linear_reader(), recorder)
    step, epoch = recorder.of(ps.EndStep)[-1].metrics, recorder.of(ps.EndEpoch)[0].metrics
    tested = trainer.test(linear_reader())
    assert type(step) is type(epoch) is type(tested) is expected
    if kind == "dict":
        assert list(step) == list(epoch) == list(tested) == ["z", "loss", "a"]
        step, epoch, tested = ([m["loss"], m["z"], m["a"]] for m in (step, epoch, tested))
    assert step[2].shape == (2, 1)  # the rows of the last batch, padding cut off
    assert epoch[2].shape == tested[2].shape == (1,)  # averaged over examples
    assert all(type(m[0]) is type(m[1]) is float for m in (step, epoch, tested))
    np.testing.assert_allclose(step[1], np.mean(step[2] ** 2), rtol=1e-5)
    y = linear_data(10)["y"][8:]
    np.testing.assert_allclose(step[0], np.mean((step[2] - y) ** 2), rtol=1e-5)


# The classes by themselves.


def test_metrics_are_read_when_asked_for_and_once():
    reads = []
    event = ps.EndStep(epoch=0, step=0, global_step=0, read=lambda: reads.append(1) or 0.5)
    assert not reads
    assert (event.metrics, event.metrics) == (0.5, 0.5)
    assert reads == [1]


# What is no handler, and whose error it is that ends training.


def takes_two(trainer, event):
    pass


def test_handler_that_does_not_take_one_event_is_an_error_before_any_step(trainer):
    with pytest.raises(TypeError, match=r"takes_two.* missing 1 required") as caught:
        trainer.train(linear_reader(), takes_two)
    assert trainer.global_step == 0
    assert "Raised by the event handler takes_two at BeginTraining(" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (3, "int, expected a function that takes"),
        ("log", "str, expected a function that takes"),
        (threading.Timer, r"the class Timer, .* Make one: Timer\(\.\.\.\)"),
    ],
    ids=["number", "text", "class"],
)
def test_what_is_no_handler_is_refused_before_any_event(trainer, handler, text):
    for handlers in (handler, [print, handler]):
        with pytest.raises(TypeError, match=f"^event_handler got {text}"):
            trainer.train(linear_reader(), handlers)
    assert trainer.epoch == 0


def test_handlers_of_every_form_are_taken():
    events = []
    bound = functools.partial(takes_two, None)
    emit = combine_handlers(
        [events.append, bound, lambda event, times=1: None, lambda *events: None, print]
    )
    emit(ps.BeginEpoch(epoch=0, global_step=0))
    assert len(events) == 1


def test_error_that_ended_training_is_the_one_that_is_raised():
    failed = LookupError("first")

    def fail_at_the_end(event):
        raise ValueError("second")

    combine_handlers(fail_at_the_end)(ps.EndTraining("failed", failed, 3))
    assert failed.__notes__ == [
        "The event handler test_error_that_ended_training_is_the_one_that_is_raised.<locals>."
        "fail_at_the_end failed at the end too: ValueError: second"
    ]
    with pytest.raises(ValueError, match="second"):
        combine_handlers(fail_at_the_end)(ps.EndTraining("completed", None, 3))

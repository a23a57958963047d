"""StopAt: the last step, by number or by time."""

import pytest

from penstock.handlers import StopAt, stop_at
from tests.handlers.driving import Clock, linear_trainer
from tests.networks import Recorder, linear_reader


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stop_at, "time", clock)
    return clock


@pytest.mark.parametrize("step", [1, 3, 4, 6])
def test_training_stops_at_the_step(step):
    trainer, recorder = linear_trainer(), Recorder()
    trainer.train(linear_reader(), [recorder, StopAt(step=step)], num_epochs=4)
    assert trainer.global_step == step
    assert recorder.lines[-1] == "EndTraining stopped"


def test_step_counts_over_all_calls_of_train():
    trainer = linear_trainer()
    trainer.train(linear_reader(), num_epochs=1)
    trainer.train(linear_reader(), StopAt(step=5), num_epochs=4)
    assert trainer.global_step == 5


def test_training_that_is_there_already_reads_nothing():
    trainer, recorder = linear_trainer(), Recorder()
    trainer.train(linear_reader(), num_epochs=1)
    trainer.train(linear_reader(), [recorder, StopAt(step=3)], num_epochs=4)
    assert recorder.lines == ["BeginTraining 1", "EndTraining stopped"]


def test_steps_of_a_launch_are_all_done():
    trainer = linear_trainer(steps_per_call=4)
    trainer.train(linear_reader(32), StopAt(step=5), num_epochs=2)
    assert trainer.global_step == 8


def test_training_stops_after_the_seconds_of_this_call(clock):
    trainer = linear_trainer()

    def work(event):
        clock.now += 1.0 if type(event).__name__ == "EndStep" else 0.0

    clock.now += 1000.0
    trainer.train(linear_reader(), [work, StopAt(seconds=5)], num_epochs=4)
    assert trainer.global_step == 5
    trainer.train(linear_reader(), [work, StopAt(seconds=5)], num_epochs=4)
    assert trainer.global_step == 10


def test_seconds_that_passed_between_epochs_count(clock):
    trainer = linear_trainer()

    def work(event):
        clock.now += 10.0 if type(event).__name__ == "EndEpoch" else 0.0

    trainer.train(linear_reader(), [StopAt(seconds=5), work], num_epochs=4)
    assert trainer.global_step == 3


def test_whichever_comes_first_stops(clock):
    trainer = linear_trainer()

    def work(event):
        clock.now += 1.0 if type(event).__name__ == "EndStep" else 0.0

    trainer.train(linear_reader(), [work, StopAt(step=100, seconds=2)], num_epochs=4)
    assert trainer.global_step == 2
    trainer.train(linear_reader(), [work, StopAt(step=4, seconds=100)], num_epochs=4)
    assert trainer.global_step == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "StopAt got neither step nor seconds, expected one of them or both. They say when"),
        ({"step": -1}, "StopAt got step=-1, expected an integer of 0 or more. It is how many"),
        ({"step": 1.5}, "StopAt got step=1.5, expected an integer"),
        ({"seconds": -1}, "StopAt got seconds=-1, expected 0 or more. It is how long training"),
        ({"seconds": float("nan")}, "StopAt got seconds=nan, expected 0 or more"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        StopAt(**arguments)

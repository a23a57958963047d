"""StopAt: the last step, by number or by time."""

import pytest

from penstock.handlers import StopAt
from tests.handlers.driving import linear_trainer
from tests.networks import Recorder, linear_reader


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


@pytest.mark.parametrize(
    ("name", "secs", "options", "step"),
    [
        ("EndStep", 1.0, {"step": 1}, 1),
        ("EndStep", 1.0, {"step": 3}, 3),
        ("EndStep", 1.0, {"seconds": 5}, 5),
        ("EndEpoch", 10.0, {"seconds": 5}, 3),
        ("EndStep", 1.0, {"step": 100, "seconds": 2}, 2),
        ("EndStep", 1.0, {"step": 4, "seconds": 100}, 4),
    ],
)
def test_training_stops_at_the_step_or_the_seconds_of_this_call(clock, name, secs, options, step):
    trainer, recorder = linear_trainer(), Recorder()

    def work(event):
        clock.now += secs if type(event).__name__ == name else 0.0

    clock.now += 1000.0
    trainer.train(linear_reader(), [work, recorder, StopAt(**options)], num_epochs=4)
    assert trainer.global_step == step
    assert recorder.lines[-1] == "EndTraining stopped"
    if "step" not in options:
        trainer.train(linear_reader(), [work, StopAt(**options)], num_epochs=4)
        assert trainer.global_step == 2 * step

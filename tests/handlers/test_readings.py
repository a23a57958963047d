"""What handlers read of a run, and when."""

import pytest

from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndStep, EndTraining
from penstock.handlers._readings import Readings
from tests.handlers.driving import Source, drive


def readings_of(every_steps, **options):
    readings, found = Readings(every_steps), []
    source = drive(lambda event: found.append(readings(event)), **options)
    return [reading for reading in found if reading is not None], source


def test_steps_between_intervals_are_not_read():
    found, source = readings_of(4, num_epochs=2, num_steps=10)
    assert source.steps == [3, 7, 11, 15, 19]
    assert [reading.global_step for reading in found] == source.steps
    assert source.epochs == []


def test_steps_are_read_after_the_next_launch_unless_the_epoch_ends():
    _, source = readings_of(4, num_epochs=2, num_steps=10)
    assert source.late == [True, True, True, True, False]


def test_counts_are_those_of_the_step_that_was_read():
    found, _ = readings_of(4, num_steps=10)
    assert [(r.num_steps, r.num_examples) for r in found] == [(4, 40), (8, 80)]
    found, _ = readings_of(4, num_steps=10, first=5)
    assert [(r.step, r.num_steps, r.num_examples) for r in found] == [(7, 3, 30)]


@pytest.mark.parametrize("every_steps", [0, -1])
def test_interval_of_zero_or_less_reads_nothing(every_steps):
    found, source = readings_of(every_steps)
    assert (found, source.steps) == ([], [])


@pytest.mark.parametrize("every_steps", [1.5, None, True])
def test_interval_that_is_no_integer_is_refused(every_steps):
    with pytest.raises(ValueError, match=r"every_steps got .*, expected an integer\. It is how"):
        Readings(every_steps)


def test_take_reads_at_once_and_only_what_is_due():
    readings, source = Readings(2), Source()
    readings(BeginTraining(0, 1, 0))
    readings(BeginEpoch(0, 0))
    for step in range(2):
        assert readings.take() is None
        readings(BeginStep(0, step, step))
        readings(EndStep(0, step, step, 10, source.step(step)))
    reading = readings.take()
    assert reading is not None
    assert reading.global_step == 1
    assert readings.take() is None
    assert readings(EndTraining("completed")) is None


def fail():
    raise RuntimeError("the device failed")


def test_step_that_failed_does_not_hide_the_error_that_ended_training():
    error = RuntimeError("the device failed")
    readings = Readings(1)
    readings(BeginStep(0, 0, 0))
    readings(EndStep(0, 0, 0, 10, fail))
    assert readings(EndTraining("failed", error)) is None


def test_step_that_failed_is_an_error_during_training():
    readings = Readings(1)
    for step in range(2):
        readings(BeginStep(0, step, step))
        if not step:
            readings(EndStep(0, step, step, 10, fail))
    with pytest.raises(RuntimeError, match="the device failed"):
        readings(EndStep(0, 1, 1, 10, fail))

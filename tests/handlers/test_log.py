"""Log: FastNN's line, and what its times are of."""

import io
import re

import pytest

from penstock.handlers import Log, _readings
from tests.handlers.driving import Clock, Source, drive, linear_trainer
from tests.networks import linear_reader


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_readings, "time", clock)
    return clock


def lines_of(clock, *, secs, between_epochs=0.0, **options):
    """Return the lines of a run whose steps take `secs(global_step)` seconds."""
    file = io.StringIO()
    names = options.pop("names", ("loss", "accuracy"))
    every_steps = options.pop("every_steps", 4)

    def advance(global_step):
        clock.now += secs(global_step)

    def rest(event):
        clock.now += between_epochs * (type(event).__name__ == "EndEpoch")

    drive([Log(every_steps, names=names, file=file), rest], on_step=advance, **options)
    return file.getvalue().splitlines()


def test_line_has_fastnns_form(clock):
    source = Source((2.302585, 0.125, 0.01))
    names = ("loss", "accuracy", "lrate")
    lines = lines_of(clock, secs=lambda step: 0.5, names=names, source=source)
    assert lines[1] == (
        "[0.5 secs/step, 20.0 samples/sec] "
        "loss = 2.30259, accuracy = 0.125, lrate = 0.01, global_step = 8"
    )


@pytest.mark.parametrize("name", ["lrate", "learning_rate"])
def test_learning_rate_comes_after_the_other_metrics(clock, name):
    source = Source({name: 0.5, "loss": 1.0})
    line = lines_of(clock, secs=lambda step: 1.0, source=source)[0]
    assert line.endswith("] loss = 1, lrate = 0.5, global_step = 4")


def test_first_launch_is_left_out_of_the_times(clock):
    lines = lines_of(clock, secs=lambda step: 60.0 if step == 0 else 0.5)
    assert [line.split("]")[0] for line in lines] == ["[0.5 secs/step, 20.0 samples/sec"] * 2


def test_compiling_and_measuring_are_left_out_of_the_times(clock):
    beside = {5: (60.0, 0.0), 6: (0.0, 2.0), 7: (1.0, 1.0)}
    lines = lines_of(
        clock,
        secs=lambda step: 0.5 + sum(beside.get(step, ())),
        beside=lambda step: beside.get(step, (0.0, 0.0)),
    )
    assert [line.split("]")[0] for line in lines] == ["[0.5 secs/step, 20.0 samples/sec"] * 2


def test_times_are_those_of_the_steps_since_the_line_before(clock):
    lines = lines_of(clock, secs=lambda step: 1.0 if step < 9 else 3.0, num_steps=21)
    speeds = [line.split(" samples")[0] for line in lines]
    assert speeds == ["[1 secs/step, 10.0"] * 2 + ["[3 secs/step, 3.3"] * 3


def test_time_between_epochs_is_left_out(clock):
    lines = lines_of(clock, secs=lambda step: 1.0, num_epochs=3, num_steps=6, between_epochs=100.0)
    assert [line.split("]")[0] for line in lines] == ["[1 secs/step, 10.0 samples/sec"] * 4


def test_line_without_a_step_to_time_says_so(clock):
    lines = lines_of(clock, secs=lambda step: 1.0, every_steps=1, num_steps=2)
    assert lines == [
        "[1 secs/step, 10.0 samples/sec] loss = 0.5, global_step = 1",
        "[- secs/step, - samples/sec] loss = 0.5, global_step = 2",
    ]


@pytest.mark.parametrize("every_steps", [0, -10])
def test_interval_of_zero_or_less_prints_and_reads_nothing(clock, every_steps):
    source = Source()
    assert lines_of(clock, secs=lambda step: 1.0, every_steps=every_steps, source=source) == []
    assert source.steps == source.epochs == []


def test_steps_that_fetch_nothing_have_a_line_without_metrics(clock):
    line = lines_of(clock, secs=lambda step: 1.0, source=Source(None))[0]
    assert re.fullmatch(r"\[.*\] global_step = 4", line)


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_real_training_prints_a_line_at_each_interval(steps_per_call, capsys):
    trainer = linear_trainer(steps_per_call=steps_per_call)
    trainer.train(linear_reader(16), Log(2), num_epochs=2)
    lines = capsys.readouterr().out.splitlines()
    form = r"\[(\S+) secs/step, \S+ samples/sec\] loss = [\d.e-]+, global_step = (\d)"
    matches = [re.fullmatch(form, line) for line in lines]
    assert [match and match[2] for match in matches] == ["2", "4", "6", "8"]

"""Log: FastNN's line, what its times are of; the learning rate in what handlers write."""

import csv
import io
import json
import re
import types

import optax
import pytest

import penstock as ps
from penstock import handlers, optimizers
from penstock.handlers import Log, progress
from penstock.handlers.report.history import RunTimes
from tests.handlers.driving import Source, drive, driven_trainer, linear_trainer
from tests.networks import linear_program, linear_reader, one_device


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


def test_first_launch_compiling_and_measuring_are_left_out_of_the_times(clock):
    beside = {5: (60.0, 0.0), 6: (0.0, 2.0), 7: (1.0, 1.0)}
    lines = lines_of(
        clock,
        secs=lambda step: 60.0 if step == 0 else 0.5 + sum(beside.get(step, ())),
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


@pytest.mark.parametrize("tests_first", [True, False])
def test_tests_are_in_no_time_wherever_they_are_made(clock, tests_first):
    trainer = types.SimpleNamespace(secs_beside=7.0, builder=driven_trainer().builder)
    file, bar, times = io.StringIO(), io.StringIO(), RunTimes()

    def evaluate(event):
        if isinstance(event, ps.EndEpoch) or (isinstance(event, ps.EndStep) and event.step == 1):
            clock.now += 100.0
            trainer.secs_beside += 100.0

    def advance(global_step):
        clock.now += 1.0

    own = [Log(2, file=file), handlers.Progress(file=bar), times]
    ordered = [evaluate, *own] if tests_first else [*own, evaluate]
    drive(ordered, num_epochs=2, num_steps=4, on_step=advance, trainer=trainer)
    assert {line.split("]")[0] for line in file.getvalue().splitlines()[1:]} == {
        "[1 secs/step, 10.0 samples/sec"
    }
    assert set(re.findall(r"\S+ ex/s", bar.getvalue())) == {"10 ex/s"}
    assert (times.secs["steps"], times.secs["between"], times.epoch_secs) == (8.0, 400.0, 4.0)


def test_waiting_for_the_last_step_of_an_epoch_is_in_its_line_alone(clock):
    def wait(step):
        clock.now += 3.0
        return 0.5

    options = {"num_epochs": 2, "num_steps": 4, "source": Source(wait)}
    lines = lines_of(clock, secs=lambda step: 1.0, **options)
    assert [line.split(" ")[0] for line in lines] == ["[2", "[1.75"]


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


RATES = [0.04, 0.03, 0.02, 0.01]


def train(handler, objectives=None):
    """Train for four steps, at rates that fall where no objectives have their own."""
    schedule = optax.linear_schedule(0.04, 0.0, transition_steps=4)
    optimizer = None if objectives else optimizers.get("sgd", schedule)
    trainer = ps.Trainer(objectives or linear_program, optimizer, place=one_device())
    trainer.train(linear_reader(16), handler)


def test_log_prints_it(capsys):
    train(handlers.Log(every_steps=1))
    lines = capsys.readouterr().out.splitlines()
    rates = [float(line.split("lrate = ")[1].split(",")[0]) for line in lines]
    assert rates == pytest.approx(RATES)
    assert lines[0].endswith("lrate = 0.04, global_step = 1")


def test_log_names_the_objective_where_there_are_several(capsys):
    rates = {"a": optimizers.get("sgd", 0.05), "b": optax.sgd(0.01)}
    objectives = {name: ps.Objective(linear_program, rate) for name, rate in rates.items()}
    train(handlers.Log(every_steps=4), objectives)
    assert "lrate/a = 0.05, global_step = 4" in capsys.readouterr().out


def test_progress_shows_it_behind_the_metrics(monkeypatch):
    file = io.StringIO()
    always = lambda file: progress._Lines(file, interval_secs=0.0)  # noqa: E731
    monkeypatch.setattr(progress, "_make_display", always)
    train(handlers.Progress(file=file))
    lines = [line for line in file.getvalue().splitlines() if "step" in line]
    assert lines
    for line in lines:
        assert re.search(r"  loss \d\.\d{4}  lr 0\.0[1-4]0*(  |$)", line), line


def test_logs_have_a_column_for_it(tmp_path):
    logs = {"log.csv": handlers.CSVLog, "log.jsonl": handlers.JSONLog}
    train([make(tmp_path / name, every_steps=1) for name, make in logs.items()])
    with open(tmp_path / "log.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "step"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx(RATES)
    assert [row["learning_rate"] for row in steps] == pytest.approx(RATES)


def test_evaluate_tests_and_keeps_the_average(tmp_path):
    optimizer, reader = optimizers.get("sgd", 0.04, moving_average_decay=0.9), linear_reader()
    trainer = ps.Trainer(linear_program, optimizer, place=one_device())
    evaluate = handlers.Evaluate(reader, averaged=True, best_path=tmp_path / "best")
    trainer.train(reader, evaluate)
    assert evaluate.last == {"loss": trainer.test(reader, averaged=True)}
    kept = ps.Trainer(
        linear_program, optax.sgd(0.1), place=one_device(), param_path=tmp_path / "best"
    )
    assert kept.test(reader) == pytest.approx(evaluate.last["loss"])

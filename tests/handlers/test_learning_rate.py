"""The learning rate of the optimizer, in what handlers write."""

import csv
import io
import json
import re

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import handlers, layers, optimizers
from penstock.handlers import _display, progress

X = np.linspace(-1, 1, 32, dtype="float32").reshape(16, 2)
READER = ps.readers.arrays({"x": X, "y": X[:, :1]}, batch_size=4)
RATES = [0.4, 0.3, 0.2, 0.1]


def program():
    prediction = layers.fc(layers.data("x", [2]), 1)
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", [1])))


def train(handler, functions=program):
    schedule = optax.linear_schedule(0.4, 0.0, transition_steps=4)
    if functions is program:
        trainer = ps.Trainer(program, optimizers.get("sgd", schedule), place=jax.devices("cpu")[0])
    else:
        trainer = ps.Trainer(functions, place=jax.devices("cpu")[0])
    trainer.train(READER, handler)


def test_log_prints_it(capsys):
    train(handlers.Log(every_steps=1))
    lines = capsys.readouterr().out.splitlines()
    rates = [float(line.split("lrate = ")[1].split(",")[0]) for line in lines]
    assert rates == pytest.approx(RATES)
    assert lines[0].endswith("lrate = 0.4, global_step = 1")


def test_log_names_the_objective_where_there_are_several(capsys):
    objectives = {
        "a": ps.Objective(program, optimizers.get("sgd", 0.5)),
        "b": ps.Objective(program, optax.sgd(0.1)),
    }
    train(handlers.Log(every_steps=4), objectives)
    assert "lrate/a = 0.5, global_step = 4" in capsys.readouterr().out


def test_progress_shows_it_behind_the_metrics(monkeypatch):
    file = io.StringIO()
    always = lambda file: _display.Lines(file, interval_secs=0.0)  # noqa: E731
    monkeypatch.setattr(progress, "make_display", always)
    train(handlers.Progress(file=file))
    lines = [line for line in file.getvalue().splitlines() if "step" in line]
    assert lines
    for line in lines:
        assert re.search(r"  loss \d\.\d{4}  lr 0\.[1-4](  |$)", line), line


def test_logs_have_a_column_for_it(tmp_path):
    train(
        [
            handlers.CSVLog(tmp_path / "log.csv", every_steps=1),
            handlers.JSONLog(tmp_path / "log.jsonl", every_steps=1),
        ]
    )
    with open(tmp_path / "log.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "step"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx(RATES)
    assert [row["learning_rate"] for row in steps] == pytest.approx(RATES)


def test_evaluate_tests_and_keeps_the_average(tmp_path):
    optimizer = optimizers.get("sgd", 0.4, moving_average_decay=0.9)
    trainer = ps.Trainer(program, optimizer, place=jax.devices("cpu")[0])
    evaluate = handlers.Evaluate(READER, averaged=True, best_path=tmp_path / "best")
    trainer.train(READER, evaluate)
    assert evaluate.last == {"loss": trainer.test(READER, averaged=True)}
    kept = ps.Trainer(
        program, optax.sgd(0.1), place=jax.devices("cpu")[0], param_path=tmp_path / "best"
    )
    assert kept.test(READER) == pytest.approx(evaluate.last["loss"])

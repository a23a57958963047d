"""JSONLog: lines that every JSON reader takes."""

import json

import numpy as np
import optax
import pytest

import penstock as ps
from penstock.handlers import Gradients, JSONLog
from tests.handlers.driving import Source, drive, linear_trainer
from tests.networks import class_data, classifier_program, linear_reader


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def lines(path):
    """Return the objects of a file, read as strictly as the standard has it."""
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def fields(path, *names):
    return [tuple(line.get(name) for name in names) for line in lines(path)]


def test_lines_have_the_numbers_and_metrics_of_steps_and_epochs(path):
    drive(JSONLog(path, every_steps=5, names=("loss", "auc")), source=Source((0.5, 0.75)))
    step, epoch = lines(path)
    counts = ["kind", "epoch", "step", "global_step", "seconds", "examples"]
    assert list(step) == [*counts, "loss", "auc"]
    names = [name for name in step if name != "seconds"]
    assert fields(path, *names) == [
        ("step", 0, 4, 4, 50, 0.5, 0.75),
        ("epoch", 0, 8, 8, 80, 0.5, 0.75),
    ]
    assert epoch["seconds"] >= step["seconds"] >= 0


def test_kind_and_numbers_come_first_then_rates_and_norms_and_then_metrics(path):
    trainer = linear_trainer()
    watching = [JSONLog(path, every_steps=2), Gradients(every_steps=2)]
    trainer.train(linear_reader(), watching, num_epochs=1)
    names = list(lines(path)[0])
    assert names[:6] == ["kind", "epoch", "step", "global_step", "seconds", "examples"]
    norms = ["parameter_norm", "gradient_norm", "update_norm"]
    assert names[-4:] == [*norms, "loss"]


def test_numbers_that_are_not_finite_are_strings_that_float_reads(path):
    values = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": np.array([1, np.nan])}
    drive(JSONLog(path, every_steps=0), source=Source(values))
    assert fields(path, *"abcd") == [("nan", "inf", "-inf", [1.0, "nan"])]


def test_arrays_are_nested_lists_by_the_names_of_their_place(path):
    metrics = (0.5, np.arange(4, dtype=np.float32).reshape(2, 2), np.float32(0.5))
    drive(JSONLog(path, every_steps=0, names=("loss", "table")), source=Source(metrics))
    assert fields(path, "loss", "table", "metric_2") == [(0.5, [[0.0, 1.0], [2.0, 3.0]], 0.5)]


def test_arrays_may_be_left_out(path):
    source = Source({"loss": 0.5, "table": np.ones([2, 2])})
    drive(JSONLog(path, every_steps=0, arrays=False), source=source)
    assert fields(path, "loss", "table") == [(0.5, None)]


def test_metrics_of_several_objectives_are_named_by_both(path):
    metrics = {"d": 0.5, "g": (0.25, np.ones([1]))}
    drive(JSONLog(path, every_steps=0, names=("loss", "rows")), source=Source(metrics))
    assert fields(path, "d", "g loss", "g rows") == [(0.5, 0.25, [1.0])]


@pytest.mark.parametrize("text", ["no JSON\n", "[1, 2]\n", '{"loss": 1}\n'])
def test_resumed_run_refuses_a_file_that_is_none_of_its_own(path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"log\.jsonl' got a line that cannot be read"):
        drive(JSONLog(path), first=8)
    assert path.read_text() == text


def test_lines_of_a_real_training_hold_predictions_too(path):
    trainer = ps.Trainer(classifier_program, optax.sgd(0.1), place="cpu")
    log = JSONLog(path, every_steps=2, names=("loss", "accuracy", "prediction"))
    trainer.train(ps.readers.arrays(class_data(10), 4), log)
    step, epoch = lines(path)
    assert np.shape(step["prediction"]) == (4, 3)
    assert np.shape(epoch["prediction"]) == (3,)
    assert 0 <= step["accuracy"] <= 1


def test_loss_of_a_real_training_is_the_number_that_was_trained(path):
    losses = []
    trainer = linear_trainer()
    log = JSONLog(path, every_steps=1)
    trainer.train(linear_reader(), [log, lambda event: losses.append(event)])
    steps = [event.metrics for event in losses if type(event).__name__ == "EndStep"]
    assert [line["loss"] for line in lines(path) if line["kind"] == "step"] == steps


def test_resumed_run_removes_the_lines_of_steps_that_are_trained_again(path):
    drive(JSONLog(path, every_steps=2), num_epochs=2)
    drive(JSONLog(path, every_steps=2), num_epochs=2, first=11)
    numbers = [(1, 3, 5, 7, 8), (9,), (11, 13, 15, 16)]
    assert fields(path, "global_step") == [(number,) for part in numbers for number in part]

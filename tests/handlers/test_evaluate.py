"""Evaluate: when it tests, what others see of it, and the best parameters it keeps."""

import io
import json
from pathlib import Path

import numpy as np
import optax
import pytest

import penstock as ps
from penstock._errors import UnknownNameError
from penstock.events import BeginTraining, EndEpoch
from penstock.handlers import EarlyStopping, Evaluate, Report
from tests.handlers.driving import drive, driven_trainer, linear_trainer
from tests.networks import (
    Recorder,
    class_data,
    classifier_program,
    linear_program,
    linear_reader,
    one_device,
)


def evaluated(*, num_epochs=2, before=(), after=(), trainer=None, **options):
    """Return an Evaluate that went through a training of 3 steps an epoch."""
    options.setdefault("file", io.StringIO())
    evaluate = Evaluate(linear_reader(), **options)
    trainer = trainer or linear_trainer()
    trainer.train(linear_reader(), [*before, evaluate, *after], num_epochs=num_epochs)
    return evaluate


class Reader:
    def __init__(self) -> None:
        self.num_passes = 0

    def __call__(self):
        self.num_passes += 1
        return iter(linear_reader())


@pytest.mark.quick("interval3", "interval1")
@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        ({}, [3, 6, 9, 12]),
        ({"every_epochs": 2}, [6, 12]),
        ({"every_epochs": None, "every_steps": 5}, [5, 10]),
        ({"every_steps": 4}, [3, 4, 6, 8, 9, 12]),
        ({"every_epochs": None}, []),
    ],
)
def test_tests_are_made_at_the_interval(interval, steps):
    evaluate = evaluated(num_epochs=4, **interval)
    assert [step for step, _ in evaluate.results] == steps


def test_an_average_that_no_optimizer_keeps_is_refused_before_the_first_step():
    trainer = linear_trainer()
    with pytest.raises(ValueError, match="an optimizer state without a moving average"):
        evaluated(trainer=trainer, averaged=True)
    assert trainer.global_step == 0


@pytest.mark.parametrize("make", [Evaluate, lambda reader: EarlyStopping(reader=reader)])
def test_a_reader_that_can_be_read_once_is_refused_for_several_epochs_before_the_first_step(make):
    trainer, handler = linear_trainer(), make(iter(linear_reader()))
    with pytest.raises(ps.ReaderError, match="for 2 epochs, expected what can be read again"):
        trainer.train(linear_reader(), handler, num_epochs=2)
    assert trainer.global_step == 0


def test_test_is_of_the_parameters_of_its_step():
    trainer, expected = linear_trainer(), []

    def test_too(event):
        if getattr(event, "step", None) == 1 and type(event).__name__ == "EndStep":
            expected.append((trainer.global_step, {"loss": trainer.test(linear_reader())}))

    evaluate = evaluated(
        trainer=trainer, every_epochs=None, every_steps=2, after=[test_too], num_epochs=1
    )
    assert evaluate.results == expected
    assert evaluate.last == expected[0][1]


def test_results_of_a_launch_of_several_steps_are_those_of_its_end():
    evaluate = evaluated(
        trainer=linear_trainer(steps_per_call=2), every_epochs=None, every_steps=1, num_epochs=1
    )
    # Two batches, and the short one by itself.
    assert [step for step, _ in evaluate.results] == [2, 3]


def test_same_state_is_tested_once_whoever_asks():
    reader = Reader()
    evaluate = Evaluate(reader, every_steps=3, file=io.StringIO())
    pairs = []

    def ask(event):
        if isinstance(event, EndEpoch):
            pairs.append((evaluate(), evaluate()))

    trainer = linear_trainer()
    trainer.train(linear_reader(), [ask, evaluate, ask], num_epochs=2)
    assert reader.num_passes == 2
    first, second = (metrics for _, metrics in evaluate.results)
    assert pairs == [(first, first)] * 2 + [(second, second)] * 2


def test_parameters_that_were_set_after_training_are_tested():
    evaluate, trainer = Evaluate(linear_reader(), file=io.StringIO()), linear_trainer()
    trainer.train(linear_reader(), evaluate)
    before = evaluate.last
    trainer.parameters["fc_0/b"] += 1.0
    assert evaluate() == {"loss": trainer.test(linear_reader())} != before


def test_line_is_printed_for_each_test_and_marks_the_best(capsys):
    evaluated(num_epochs=1, file=None, names="cost", monitor="cost")
    assert capsys.readouterr().out.startswith("test at step 3: cost = ")
    evaluate = evaluated(num_epochs=2, file=None)
    lines = capsys.readouterr().out.splitlines()
    losses = [metrics["loss"] for _, metrics in evaluate.results]
    assert losses[1] < losses[0]
    assert [line.endswith(" (best)") for line in lines] == [True, True]
    assert lines[1] == f"test at step 6: loss = {losses[1]:.6g} (best)"


def test_best_parameters_are_saved(tmp_path):
    trainer = ps.Trainer(linear_program, optax.sgd(0.05), place=one_device())
    path, recorder = tmp_path / "best", Recorder()

    def spoil(event):  # from the third epoch on, the parameters get worse
        if isinstance(event, EndEpoch) and event.epoch >= 1:
            for name, value in trainer.parameters.items():
                trainer.parameters[name] = value + 10.0

    evaluate = evaluated(
        trainer=trainer, best_path=path, num_epochs=4, after=[recorder, spoil], mode="min"
    )
    losses = [metrics["loss"] for _, metrics in evaluate.results]
    assert evaluate.best == evaluate.results[1]
    assert min(losses) == losses[1]
    trainer.load_params(path)
    assert trainer.test(linear_reader()) == losses[1]


def test_larger_is_better_with_mode_max():
    data = class_data(32)
    evaluate = Evaluate(
        ps.readers.arrays(data, 16),
        monitor="accuracy",
        mode="max",
        names=("loss", "accuracy"),
        file=io.StringIO(),
    )
    trainer = ps.Trainer(classifier_program, optax.adam(0.05), place="cpu")
    trainer.train(ps.readers.arrays(data, 16), evaluate, num_epochs=6)
    accuracies = [metrics["accuracy"] for _, metrics in evaluate.results]
    assert evaluate.best is not None
    assert evaluate.best[1]["accuracy"] == max(accuracies) > min(accuracies)
    assert set(evaluate.results[0][1]) == {"loss", "accuracy"}  # no predictions


def test_of_equal_values_that_with_less_loss_is_the_best():
    evaluate = Evaluate(linear_reader(), monitor="accuracy", mode="max", file=io.StringIO())
    tests = [(0.5, 0.1), (0.75, 3.0), (0.75, 2.0), (0.75, 2.5), (0.75, 2.0)]
    evaluate.results = [
        (step, {"accuracy": accuracy, "loss": loss}) for step, (accuracy, loss) in enumerate(tests)
    ]
    assert evaluate.best == (2, {"accuracy": 0.75, "loss": 2.0})


def test_a_test_whose_loss_is_nan_is_never_the_best():
    evaluate = Evaluate(linear_reader(), monitor="accuracy", mode="max", file=io.StringIO())
    evaluate.results = [
        (1, {"accuracy": 0.3, "loss": float("nan")}),
        (2, {"accuracy": 0.2, "loss": 0.5}),
    ]
    assert evaluate.best == evaluate.results[1]


def test_nothing_of_the_training_is_read_for_it():
    evaluate = Evaluate(linear_reader(), every_steps=2, file=io.StringIO())
    source = drive(evaluate, trainer=driven_trainer(), num_steps=4)
    assert source.steps == source.epochs == []


def test_results_go_through_a_checkpoint():
    evaluate = evaluated(num_epochs=2)
    evaluate.results.append((7, {"loss": float("nan")}))
    state = json.loads(json.dumps(evaluate.get_state(), allow_nan=False))
    resumed = Evaluate(linear_reader(), file=io.StringIO())
    resumed.set_state(state)
    assert resumed.results[:2] == evaluate.results[:2]
    assert np.isnan(resumed.results[2][1]["loss"])
    assert resumed.best == evaluate.best


def test_best_before_a_resume_is_not_overwritten_by_a_worse_one_after_it(tmp_path):
    trainer = linear_trainer()
    trainer.train(linear_reader(), num_epochs=3)
    resumed = Evaluate(linear_reader(), best_path=tmp_path / "best", file=io.StringIO())
    resumed.set_state({"results": [[3, {"loss": 0.0}]]})
    trainer.train(linear_reader(), resumed, num_epochs=1)
    assert [step for step, _ in resumed.results] == [3, 12]
    assert resumed.best == (3, {"loss": 0.0})
    assert not list((tmp_path / "best").iterdir())


def test_best_of_another_run_is_kept_beside_that_of_this_one(tmp_path, capsys):
    path = tmp_path / "best"
    evaluate = Evaluate(linear_reader(), best_path=path)
    for run in range(3):
        trainer = ps.Trainer(linear_program, optax.sgd(0.01), place=one_device(), seed=run)
        evaluate = Evaluate(linear_reader(), best_path=path)
        trainer.train(linear_reader(), evaluate, num_epochs=2)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["best", "best.1", "best.2"]
    records = [json.loads((tmp_path / n / "test.json").read_text()) for n in ("best.1", "best")]
    assert evaluate.best == (records[1]["step"], records[1]["metrics"])
    assert records[0]["metrics"] != records[1]["metrics"]
    assert capsys.readouterr().out.count(f"(best; those of another run are in {path}.2)") == 1


def test_record_of_the_best_is_whole_or_the_one_before(tmp_path, monkeypatch):
    evaluate = Evaluate(linear_reader(), best_path=tmp_path)
    trainer = ps.Trainer(linear_program, optax.sgd(0.01), place=one_device())
    evaluate._save_best(tmp_path, trainer, 1, {"loss": 0.5})
    write_text = Path.write_text

    def cut(path, text, **options):
        write_text(path, text[:9] if "test.json" in path.name else text, **options)
        if "test.json" in path.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(KeyboardInterrupt):
        evaluate._save_best(tmp_path, trainer, 2, {"loss": 0.25})
    assert json.loads((tmp_path / "test.json").read_text())["step"] == 1


def test_results_of_steps_that_are_trained_again_are_dropped():
    evaluate = Evaluate(linear_reader())
    evaluate.set_state({"results": [[3, {"loss": 1.0}], [6, {"loss": 0.5}]]})
    evaluate(BeginTraining(1, 1, 4, driven_trainer()))
    assert evaluate.results == [(3, {"loss": 1.0})]


def test_another_run_begins_without_results():
    evaluate = Evaluate(linear_reader(), file=io.StringIO())
    for _ in range(2):
        linear_trainer().train(linear_reader(), evaluate)
    assert [step for step, _ in evaluate.results] == [3]


def test_results_of_another_run_are_not_shown_by_a_handler_before_it(tmp_path):
    evaluate = Evaluate(linear_reader(), file=io.StringIO())
    report = Report(tmp_path / "a.html", test=evaluate)
    for num_epochs in (2, 1):
        linear_trainer().train(linear_reader(), [report, evaluate], num_epochs=num_epochs)
    assert [step for step, _ in report.get_state()["tests"]] == [3]


def test_unknown_metric_of_a_tuple_names_those_there_are():
    trainer = ps.Trainer(classifier_program, optax.sgd(0.1), place="cpu")
    with pytest.raises(UnknownNameError, match=r"expected one of 'loss', 'metric_1'\. "):
        Evaluate(linear_reader(), monitor="accuracy")(BeginTraining(0, 1, 0, trainer))


def test_question_before_training_is_refused():
    with pytest.raises(RuntimeError, match=r"Evaluate got called without an event before training"):
        Evaluate(linear_reader())()

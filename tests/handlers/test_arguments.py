"""What handlers refuse when they are made or when training begins, and what they say then."""

import re

import numpy as np
import pytest

from penstock import handlers
from penstock._errors import UnknownNameError
from penstock.events import BeginTraining
from penstock.handlers import trackers
from tests.handlers.driving import drive, driven_trainer, linear_trainer
from tests.networks import Recorder, linear_reader


def read_batches():
    yield {"x": np.ones([2, 2], np.float32)}


def make(name, directory, **options):
    """Return a handler that gets its first argument where it needs one."""
    first = {"CSVLog": "a.csv", "JSONLog": "a.jsonl", "Report": "a.html", "Plot": "a.png"}
    first |= {"TensorBoard": "logs", "Profile": "logs"}
    if name == "Evaluate":
        return handlers.Evaluate(linear_reader(), **options)
    if name in first and "path" not in options:
        return getattr(handlers, name)(directory / first[name], **options)
    return getattr(handlers, name)(**options)


TESTED = ["Progress", "CSVLog", "JSONLog", "Plot", "TensorBoard", "Report", "EarlyStopping"]


@pytest.mark.parametrize("name", [*TESTED, "ReduceOnPlateau"])
@pytest.mark.parametrize(
    "test", [linear_reader(), read_batches, 3], ids=["reader", "function", "3"]
)
def test_reader_in_place_of_a_test_is_refused(name, test, tmp_path):
    text = f"{name} got test=.*, expected an Evaluate or a function that returns metrics. .* Make "
    with pytest.raises(TypeError, match=text):
        make(name, tmp_path, test=test)


@pytest.mark.parametrize(
    "name", ["Progress", "Log", "Summary", "Evaluate", "EarlyStopping", "ReduceOnPlateau"]
)
def test_path_in_place_of_an_open_file_is_refused(name, tmp_path):
    text = f"{name} got file='log.txt', expected an open text file. .* Pass file=open\\(path, 'w'"
    with pytest.raises(TypeError, match=text):
        make(name, tmp_path, file="log.txt")


@pytest.mark.parametrize(
    "name", [*TESTED, "Log", "Evaluate", "ReduceOnPlateau", "LearningRateFinder"]
)
@pytest.mark.parametrize("names", [None, 3, [1], ("loss", "loss")], ids=str)
def test_names_that_are_no_strings_or_not_distinct_are_refused(name, names, tmp_path):
    expected = "each name once" if isinstance(names, tuple) else "a list of strings"
    got = 1 if names == [1] else names
    with pytest.raises((TypeError, ValueError), match=re.escape(f"got {got}, expected {expected}")):
        make(name, tmp_path, names=names)


MONITORING = ["Evaluate", "EarlyStopping", "ReduceOnPlateau"]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("StopAt", {}, "StopAt got neither step nor seconds, expected one or both. They"),
        ("StopAt", {"step": -1}, "step got -1, expected an integer of 0 or more"),
        (
            "StopAt",
            {"seconds": float("nan")},
            "StopAt got seconds=nan, expected a number of 0 or more",
        ),
        ("StopAt", {"seconds": "5"}, "StopAt got seconds='5', expected a number of 0 or more"),
        ("EarlyStopping", {"patience": 0}, "patience got 0, expected an integer of 1 or more"),
        (
            "EarlyStopping",
            {"min_delta": -1},
            "got min_delta=-1, expected a number of 0 or more. It is by",
        ),
        (
            "EarlyStopping",
            {"mode": "auto"},
            "got mode='auto', expected one of 'min', 'max'. It says",
        ),
        ("EarlyStopping", {"reader": [], "test": print}, "got reader and test, expected one of"),
        ("ReduceOnPlateau", {"factor": 1}, "got factor=1, expected a number between 0 and 1. The"),
        ("ReduceOnPlateau", {"factor": 0.0}, "got factor=0.0, expected a number between 0 and 1."),
        (
            "ReduceOnPlateau",
            {"min_scale": -1},
            "got min_scale=-1, expected a number of 0 or more. The sc",
        ),
        ("ReduceOnPlateau", {"cooldown": -1}, "cooldown got -1, expected an integer of 0 or more"),
        (
            "LearningRateFinder",
            {"low": 1.0, "high": 0.1},
            "got high=0.1, expected a finite number above 1",
        ),
        ("LearningRateFinder", {"low": 0.0}, "got low=0.0"),
        (
            "LearningRateFinder",
            {"base_learning_rate": 0.0},
            "base_learning_rate=0.0, expected a fin",
        ),
        ("LearningRateFinder", {"num_steps": 9}, "num_steps got 9, expected an integer of 10 or"),
        ("LearningRateFinder", {"path": "a.gif"}, "Finder got 'a.gif', expected a name that ends"),
        ("Profile", {"first_step": -1}, "first_step got -1, expected an integer of"),
        ("Profile", {"num_steps": 0}, "num_steps got 0, expected an integer of"),
        ("Gradients", {"every_steps": 0}, "every_steps got 0"),
        ("ReduceOnPlateau", {"factor": "a"}, "got factor='a', expected a number between 0 and 1"),
        ("LearningRateFinder", {"low": "a"}, "got low='a', expected a finite number above 0"),
        ("Progress", {"stop_at": "a"}, "stop_at got 'a', expected an integer of 0 or more"),
        ("Profile", {"top": True}, "top got True, expected an integer of 1 or more"),
        (
            "TensorBoard",
            {"histograms_every_epochs": 1.5},
            "histograms_every_epochs got 1.5, expected",
        ),
        ("CSVLog", {"every_steps": 1.5}, r"every_steps got 1.5, expected an integer\. It is how"),
        ("Report", {"every_steps": None}, "every_steps got None, expected an integer"),
        ("Evaluate", {"every_steps": True}, "every_steps got True, expected an integer of 1"),
        ("Evaluate", {"every_epochs": 0}, "every_epochs got 0, expected an integer of 1 or more"),
        ("Plot", {"path": "a.jpg"}, "Plot got 'a.jpg', expected .* in .png, .svg, .pdf. The suf"),
        ("Report", {"path": "a.pdf"}, "got 'a.pdf', expected a name that ends in .html"),
        ("Report", {"path": "."}, "got the folder '.', expected a file, e.g. 'name.html'"),
        ("Report", {"classes": ("a",)}, "Report got classes without a reader, expected both"),
        ("Report", {"infer": print}, "Report got infer without a reader, expected both"),
        ("Report", {"num_samples": -1}, "num_samples got -1, expected an integer of 0 or more"),
    ],
)
def test_what_is_no_number_in_its_range_is_refused(name, options, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        make(name, tmp_path, **options)


@pytest.mark.parametrize("name", [*MONITORING, "LearningRateFinder"])
def test_unknown_metric_is_an_error_before_training(name, tmp_path):
    recorder, handler = Recorder(), make(name, tmp_path, monitor="lost")
    text = (
        rf"{name} got monitor='lost', expected one of 'loss'\. It is the metric to go by\. .*"
        r" Did you mean 'loss'\?"
    )
    with pytest.raises(UnknownNameError, match=text):
        linear_trainer().train(linear_reader(), [recorder, handler])
    assert recorder.lines == ["BeginTraining 0", "EndTraining failed"]


@pytest.mark.parametrize("name", [*MONITORING, "LearningRateFinder", "StopAt"])
def test_begin_training_without_a_trainer_is_refused(name, tmp_path):
    handler = make(name, tmp_path, **({"step": 5} if name == "StopAt" else {}))
    text = rf"{name} got a BeginTraining without a trainer, expected one with it\. It stops"
    with pytest.raises(ValueError, match=text):
        handler(BeginTraining(epoch=0, num_epochs=1, global_step=0))


def test_numpy_integer_is_an_interval(capsys):
    drive(handlers.Log(np.int64(4)), num_steps=8)
    assert capsys.readouterr().out.count("global_step") == 2


@pytest.mark.parametrize(
    ("make_handler", "text"),
    [
        (lambda: handlers.Evaluate(3), "reader got int, expected a function without arguments"),
        (lambda: handlers.EarlyStopping(reader=3), "reader got int, expected a function"),
        (lambda: handlers.Report(reader=3, infer=print), "reader got int, expected a function"),
        (
            lambda: handlers.Report(reader=read_batches, classes="ab"),
            "Report got classes='ab', expected a list of names.",
        ),
        (lambda: handlers.WandB(hyperparameters=3), "WandB got hyperparameters=3, expected a dict"),
        (lambda: handlers.MLflow(hyperparameters=3), "MLflow got hyperparameters=3, expected a di"),
        (
            lambda: handlers.TensorBoard("logs", images=3),
            "TensorBoard got images=3, expected a function that returns images by name",
        ),
    ],
)
def test_what_is_of_another_kind_is_refused(make_handler, text, monkeypatch):
    # The services' packages need not be there.
    monkeypatch.setattr(trackers, "check_installed", lambda *names: None)
    with pytest.raises(TypeError, match=text):
        make_handler()


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("Evaluate", "best_path"),
        ("TensorBoard", "directory"),
        ("Profile", "directory"),
        ("LearningRateFinder", "path"),
    ],
)
def test_folder_that_cannot_be_made_is_an_error_before_training(name, argument, tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "logs"
    path = folder / "rates.png" if name == "LearningRateFinder" else folder
    first = [linear_reader()] if name == "Evaluate" else []
    handler = getattr(handlers, name)(*first, **{argument: path})
    text = f"{name} got the path '{re.escape(str(folder))}', expected one that can be written"
    with pytest.raises(OSError, match=text):
        drive(handler, trainer=driven_trainer())


def test_trace_that_training_did_not_reach_is_warned_of(tmp_path, caplog):
    drive(handlers.Profile(tmp_path, first_step=10), num_steps=8)
    assert "Profile traced nothing: training ended after 8 steps" in caplog.text


def test_curves_without_a_point_are_warned_of(tmp_path, caplog):
    drive(handlers.Plot(tmp_path / "a.png", every_steps=10), num_steps=8)
    assert "Plot drew nothing: no step was read, at every_steps=10." in caplog.text


def test_number_of_epochs_in_the_place_of_a_handler_is_named():
    with pytest.raises(TypeError, match=r"event_handler got int, .* num_epochs=5\."):
        driven_trainer().train(linear_reader(), 5)

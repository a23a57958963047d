"""`penstock plot`: what it draws of runs' logs, and what it says of mistakes."""

import io
import sys

import cv2
import pytest

from penstock import commands
from penstock.commands import plot
from penstock.handlers import CSVLog, Evaluate, JSONLog, figures
from tests.handlers.driving import Source, drive, linear_trainer
from tests.networks import linear_reader

KINDS = pytest.mark.parametrize("kind", [CSVLog, JSONLog])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """Collect the panels that are drawn."""
    panels = []

    def draw(path, what):
        panels.extend(what)
        figures.draw(path, what)

    monkeypatch.setattr(plot, "draw", draw)
    return panels


def logged(kind, path, *, every_steps=2, num_epochs=2, names=("loss", "accuracy")):
    """Write the log of a run of 4 steps an epoch; its loss at a step is the step's number."""
    log = kind(path, every_steps=every_steps, names=names)
    source = Source(lambda step: (float(step), 0.5))
    drive(log, num_epochs=num_epochs, num_steps=4, source=source)


def points(panel):
    """Return the points of each line by its label."""
    return {line.label: list(zip(line.x, line.y, strict=True)) for line in panel.lines}


@KINDS
def test_runs_are_drawn_against_each_other_by_steps_done(kind, drawn, capsys):
    logged(kind, "a/log.jsonl")
    logged(kind, "b.csv", every_steps=4)
    assert commands.main(["plot", "a", "b.csv"]) == 0
    assert capsys.readouterr().out == "curves.png\n"
    assert points(drawn[0]) == {
        "a": [(2, 1.0), (4, 3.0), (6, 5.0), (8, 7.0)],
        "b.csv": [(4, 3.0), (8, 7.0)],
    }
    assert [line.color for line in drawn[0].lines] == [0, 1]
    assert cv2.imread("curves.png").size


@KINDS
def test_epochs_are_drawn_by_their_number(kind, drawn):
    logged(kind, "a.csv")
    assert commands.main(["plot", "a.csv", "--x", "epoch"]) == 0
    assert points(drawn[0]) == {"a.csv": [(1, 3.0), (2, 7.0)]}
    assert drawn[0].x_label == "epoch"
    assert drawn[0].lines[0].has_markers


def test_run_that_logged_epochs_only_is_drawn_by_them(drawn):
    logged(CSVLog, "a.csv", every_steps=0)
    assert commands.main(["plot", "a.csv"]) == 0
    assert points(drawn[0]) == {"a.csv": [(4, 3.0), (8, 7.0)]}


def test_seconds_of_training_are_an_axis(drawn):
    logged(CSVLog, "a.csv")
    assert commands.main(["plot", "a.csv", "--x", "seconds"]) == 0
    seconds = drawn[0].lines[0].x
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < 60
    assert drawn[0].x_label == "seconds of training"


@KINDS
@pytest.mark.parametrize(("x", "expected"), [("step", [2, 4, 6]), ("epoch", [2 / 3, 4 / 3, 2])])
def test_tests_are_dashed_in_the_run_s_colour(kind, drawn, x, expected):
    evaluate = Evaluate(linear_reader(), every_steps=2, every_epochs=None, file=io.StringIO())
    log = kind("a.csv", test=evaluate)
    linear_trainer().train(linear_reader(), [evaluate, log], num_epochs=2)  # of 3 steps each
    assert commands.main(["plot", "a.csv", "--x", x]) == 0
    train, test = drawn[0].lines
    assert (test.label, test.is_dashed, test.color) == ("a.csv test", True, train.color)
    assert list(test.x) == pytest.approx(expected)
    assert list(test.y) == [metrics["loss"] for _, metrics in evaluate.results]


def test_several_metrics_are_panels(drawn):
    logged(CSVLog, "a.csv")
    argv = ["plot", "a.csv", "--metric", "accuracy", "--metric", "loss", "--log"]
    assert commands.main(argv) == 0
    assert [(panel.title, panel.is_y_log) for panel in drawn] == [("accuracy", 1), ("loss", 1)]


def test_output_has_the_format_of_its_name():
    logged(CSVLog, "a.csv")
    assert commands.main(["plot", "a.csv", "--output", "deeper/a.svg"]) == 0
    with open("deeper/a.svg") as file:
        assert "<svg" in file.read()


@KINDS
def test_values_that_are_not_finite_are_left_out(kind, drawn):
    values = [float("nan"), 1.0, float("inf"), 2.0]
    log = kind("a.csv", every_steps=1)
    drive(log, num_steps=4, source=Source(lambda step: values[step]))
    assert commands.main(["plot", "a.csv"]) == 0
    assert points(drawn[0])["a.csv"] == [(2, 1.0), (4, 2.0)]


@KINDS
def test_row_that_was_cut_off_is_left_out(kind, drawn, folder):
    logged(kind, "a.csv")
    text = (folder / "a.csv").read_text()
    (folder / "a.csv").write_text(text[:-9])
    assert commands.main(["plot", "a.csv", "--x", "epoch"]) == 0
    assert points(drawn[0])["a.csv"] == [(1, 3.0)]


def test_metrics_with_axes_are_no_metrics(capsys):
    log = JSONLog("a.jsonl")
    drive(log, source=Source({"loss": 1.0, "each": [1.0, 2.0]}))
    assert commands.main(["plot", "a.jsonl", "--metric", "each"]) == 2
    assert "got the metric 'each', expected one of 'loss'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["nope"], "the run got 'nope', expected a log file or a folder with one. There is noth"),
        (["empty"], "The folder has no .csv or .jsonl file. Was a CSVLog or JSONLog among"),
        (["two"], "The folder has several. Name one: two/a.csv, two/b.csv."),
        (["nothing.csv"], "the log 'nothing.csv' got no rows, expected at least one."),
        (["header.csv"], "the log 'header.csv' got no rows"),
        (["notes.txt"], "the log 'notes.txt' got something that cannot be read (rows without 'ki"),
        (["bad.jsonl"], "the log 'bad.jsonl' got something that cannot be read (Expecting"),
        (["list.jsonl"], "the log 'list.jsonl' got something that cannot be read"),
        (["binary"], "the log 'binary' got something that cannot be read ('utf-8' codec can't"),
        (
            ["two/a.csv", "--metric", "acuracy"],
            "the run 'two/a.csv' got the metric 'acuracy', expected one of 'loss', 'accuracy'. Did "
            "you mean 'accuracy'?",
        ),
        (["two/a.csv", "--output", "a.jpg"], "--output got 'a.jpg', expected a name that ends in"),
        (["nan.csv"], "the metric 'loss' got no finite value in 1 run,"),
    ],
)
def test_mistake_is_one_line_and_exit_status_2(folder, argv, text, capsys):
    (folder / "empty").mkdir()
    logged(CSVLog, "two/a.csv")
    logged(CSVLog, "two/b.csv")
    drive(CSVLog("nan.csv"), source=Source(float("nan")))
    (folder / "nothing.csv").write_text("")
    (folder / "header.csv").write_text((folder / "two/a.csv").read_text().splitlines()[0] + "\n")
    (folder / "notes.txt").write_text("a,b\n1,2\n")
    (folder / "bad.jsonl").write_text("{a\n")
    (folder / "list.jsonl").write_text('{"kind": []}\n')
    (folder / "binary").write_bytes(b"\x89PNG\n")
    assert commands.main(["plot", *argv]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.startswith("penstock plot: ")
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_missing_matplotlib_names_the_extra_and_fails(monkeypatch, capsys):
    logged(CSVLog, "a.csv")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert commands.main(["plot", "a.csv"]) == 1
    assert 'pip install "penstock[plot]"' in capsys.readouterr().err


def test_picture_that_cannot_be_written_fails(folder, capsys):
    logged(CSVLog, "a.csv")
    assert commands.main(["plot", "a.csv", "--output", "a.csv/curves.png"]) == 1
    assert capsys.readouterr().err.startswith("penstock plot: ")

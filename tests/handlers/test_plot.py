"""Plot: what it draws, how rarely, that it goes on after a resume; curves in bounded memory."""

import base64
import copy
import json
import sys

import cv2
import numpy as np
import pytest

from penstock.events import BeginTraining, EndTraining
from penstock.handlers import Evaluate, Plot, figures, plot
from penstock.handlers.figures import Curve, CurveSet, smooth
from tests.handlers.driving import Source, drive, drive_killed, linear_trainer
from tests.networks import linear_reader


@pytest.fixture
def drawn(monkeypatch):
    """Collect what is drawn, which is drawn all the same."""
    panels = []

    def draw(path, what):
        panels.append(copy.deepcopy(what))
        figures.draw(path, what)

    monkeypatch.setattr(plot, "draw", draw)
    return panels


def lines_of(panels):
    lines = [line for panel in panels for line in panel.lines]
    return {line.label: list(zip(line.x, line.y, strict=True)) for line in lines}


def test_curves_of_train_and_test_are_drawn_by_steps_done(tmp_path, drawn):
    tested = iter([0.5, 0.25])
    source = Source(lambda step: (1.0 / (1 + step), float(step)))
    names = ("cost", "accuracy")
    handler = Plot(tmp_path / "a.png", every_steps=3, names=names, test=lambda: (next(tested), 9.0))
    drive(handler, num_epochs=2, num_steps=4, source=source)
    lines = lines_of(drawn[-1])
    assert lines["train cost"] == [(3, 1 / 3), (6, 1 / 6)]
    assert lines["test cost"] == [(4, 0.5), (8, 0.25)]
    assert lines["train accuracy"] == [(3, 2.0), (6, 5.0)]
    assert [panel.title for panel in drawn[-1]] == ["cost", "accuracy"]


def test_results_of_an_evaluate_are_drawn_when_it_tests(tmp_path, drawn):
    evaluate = Evaluate(linear_reader(), every_steps=2, every_epochs=None, file=sys.stderr)
    handlers = [Plot(tmp_path / "a.png", test=evaluate), evaluate]
    linear_trainer().train(linear_reader(), handlers, num_epochs=2)
    expected = [(step, metrics["loss"]) for step, metrics in evaluate.results]
    assert lines_of(drawn[-1])["test loss"] == expected
    assert [step for step, _ in expected] == [2, 4, 6]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_picture_has_the_format_of_its_name(tmp_path, suffix):
    path = tmp_path / "deeper" / f"curves{suffix}"
    drive(Plot(path, every_steps=1))
    if suffix == ".svg":
        assert "<svg" in path.read_text()
    else:
        assert cv2.imread(str(path)).shape[2] == 3
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def sizes_of(shown):
    """Return height and width of each picture that an output of a notebook showed."""
    encoded = [np.frombuffer(base64.b64decode(data["image/png"]), np.uint8) for data in shown]
    pictures = [cv2.imdecode(png, cv2.IMREAD_COLOR) for png in encoded]
    return [picture.shape[:2] for picture in pictures if picture is not None]


def test_notebook_shows_a_picture_in_each_cell_that_trains_and_replaces_it(
    notebook, clock, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def on_step(step):
        clock.now += 3

    handler = Plot(every_steps=1, names=("loss", "accuracy"))
    for first, num_epochs in ((0, 2), (8, 4)):
        source = Source((0.5, 0.25))
        options = {"num_steps": 4, "first": first, "on_step": on_step}
        drive(handler, num_epochs=num_epochs, source=source, **options)
    first, second = notebook.outputs
    assert len(sizes_of(first)) > 2
    assert len(set(sizes_of(first) + sizes_of(second))) == 1
    assert {data["text/plain"] for data in first} == {"curves of loss, accuracy"}
    assert not list(tmp_path.iterdir())


def test_notebook_that_gives_a_path_gets_the_file(notebook, tmp_path):
    drive(Plot(tmp_path / "a.png", every_steps=1))
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]
    assert not notebook.outputs


def test_without_a_path_the_file_outside_notebooks_is_curves_png(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drive(Plot(every_steps=1))
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


def test_picture_is_drawn_every_five_seconds_at_most_and_at_the_end(tmp_path, drawn, clock):
    def on_step(step):
        clock.now += 1

    drive(Plot(tmp_path / "a.png", every_steps=1), num_steps=18, on_step=on_step)
    assert [len(panels[0].lines[0].x) for panels in drawn] == [4, 9, 14, 18]


def test_drawing_that_takes_long_is_done_rarely(tmp_path, drawn, clock, monkeypatch):
    def draw(path, panels):
        drawn.append(panels)
        clock.now += 1  # a second: with at most 2 % of the time, each 50 s

    monkeypatch.setattr(plot, "draw", draw)

    def on_step(step):
        clock.now += 1

    drive(Plot(tmp_path / "a.png", every_steps=1), num_steps=110, on_step=on_step)
    assert len(drawn) == 4  # after 5, 56 and 107 s, and at the end


def test_resumed_run_has_the_points_of_an_uninterrupted_one(tmp_path, drawn):
    source = Source(lambda step: float(step))

    def make():
        return Plot(tmp_path / "a.png", every_steps=2, test=lambda: 7.0)

    drive(make(), num_epochs=3, source=source)
    drive_killed(make, saved_at=12, killed_at=15, num_epochs=3, source=source)
    assert lines_of(drawn[-1]) == lines_of(drawn[0])


def test_run_without_a_point_leaves_no_picture(tmp_path):
    handler = Plot(tmp_path / "a.png")
    handler(BeginTraining(0, 1, 0))
    handler(EndTraining("stopped"))
    assert not list(tmp_path.iterdir())


def axes_of(**options):
    points = options.pop("num_points", 5)
    line = figures.Line(label="a", x=range(1, points + 1), y=range(1, points + 1), **options)
    return figures.make_figure([figures.Panel(title="loss", lines=[line])]).axes[0]


def test_many_points_are_smoothed_over_the_faint_line_and_few_are_not():
    faint, smooth = axes_of(num_points=100).get_lines()
    assert faint.get_alpha() < 1
    assert smooth.get_label() == "a"
    assert len(axes_of(num_points=5).get_lines()) == 1
    assert len(axes_of(num_points=100, has_markers=True).get_lines()) == 1


def test_names_with_dollars_are_drawn_as_they_are(tmp_path):
    name = "$\\frac{$ and $x$"
    drive(Plot(tmp_path / "a.svg", every_steps=1), source=Source({name: 1.0}))
    assert f"<!-- train {name} -->" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(("values", "scale"), [([1.0, 0.1], "log"), ([-1.0, 0.0], "linear")])
def test_logarithmic_scale_is_left_out_where_nothing_is_positive(values, scale):
    line = figures.Line(label="a", x=[1, 2], y=values)
    panel = figures.Panel(title="loss", lines=[line], is_y_log=True)
    assert figures.make_figure([panel]).axes[0].get_yscale() == scale


@pytest.mark.parametrize("max_points", [2, 3, 10, 11])
def test_curve_of_any_length_keeps_points_evenly_spread_and_bounded(max_points):
    curve = Curve(max_points=max_points)
    for step in range(1000):
        curve.add(step, -step)
        assert len(curve.x) <= max_points
        assert curve.x[0] == 0
        assert len(set(np.diff(curve.x))) <= 1
        assert step - curve.x[-1] < max(np.diff(curve.x), default=1) or step == 0
    assert curve.y == [-x for x in curve.x]


def test_curves_go_on_from_their_state_as_if_nothing_had_been_and_leave_it_as_it_was():
    whole, first, second = CurveSet(), CurveSet(), CurveSet()
    for step in range(5000):
        whole.add("train", "loss", step, -step)
        (first if step <= 2345 else second).add("train", "loss", step, -step)
        if step == 2345:
            state = first.get_state()
            first.add("train", "loss", 2346, 0.0)
            second.set_state(state)
            before = json.dumps(state)
    assert second == whole
    assert json.dumps(state) == before


def test_curve_that_is_cut_forgets_what_is_to_the_right():
    curve = Curve(max_points=3)
    for step in range(6):
        curve.add(step, step)
    assert (curve.x, curve.num_skipped) == ([0, 2, 4], 1)
    curve.cut(2)
    for step in (3, 4):
        curve.add(step, 10 * step)
    assert (curve.x, curve.y) == ([0, 2, 4], [0, 2, 40])


def test_values_that_are_not_finite_are_left_out():
    curve = Curve()
    for step, value in enumerate([1.0, float("nan"), float("inf"), 2.0]):
        curve.add(step, value)
    assert (curve.x, curve.y) == ([0, 3], [1.0, 2.0])


@pytest.mark.parametrize("is_log", [False, True])
def test_values_of_any_size_are_drawn_or_left_out(is_log, tmp_path):
    curve = Curve()
    for step, value in enumerate([1e308, -1e308, 1e200, -1e200, 5e-324, 0.0, 1e-310] * 3):
        curve.add(step, value)
    line = figures.Line(label="loss", x=curve.x, y=curve.y)
    figures.draw(tmp_path / "a.png", [figures.Panel(title="loss", lines=[line], is_y_log=is_log)])
    assert len(curve.y) == 15


def test_smoothing_takes_noise_away_and_does_not_lag():
    ramp = np.arange(200.0)
    noisy = ramp + np.random.default_rng(0).normal(size=200)
    curve = smooth(noisy, 5)
    inner = slice(20, -20)
    assert np.abs(curve - ramp)[inner].max() < 0.5 * np.abs(noisy - ramp)[inner].max()
    assert abs(np.mean((curve - ramp)[inner])) < 0.1

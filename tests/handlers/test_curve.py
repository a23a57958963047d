"""Curves in bounded memory, and their smoothing."""

import json

import numpy as np
import pytest

from penstock.handlers.figures import Curve, smooth


@pytest.mark.parametrize("max_points", [2, 3, 10, 11])
def test_curve_of_any_length_keeps_points_evenly_spread_and_bounded(max_points):
    curve = Curve(max_points)
    for step in range(1000):
        curve.add(step, -step)
        assert len(curve.x) <= max_points
        assert curve.x[0] == 0
        assert len(set(np.diff(curve.x))) <= 1
        assert step - curve.x[-1] < max(np.diff(curve.x), default=1) or step == 0
    assert curve.y == [-x for x in curve.x]


def test_curve_goes_on_from_its_state_as_if_nothing_had_been():
    whole, first, second = Curve(7), Curve(7), Curve(7)
    for step in range(100):
        whole.add(step, step)
        (first if step < 43 else second).add(step, step)
        if step == 42:
            second.set_state(json.loads(json.dumps(first.get_state())))
    assert (second.x, second.y) == (whole.x, whole.y)


def test_state_of_a_curve_is_not_changed_by_later_points():
    curve = Curve()
    curve.add(1, 1.0)
    state = curve.get_state()
    curve.add(2, 2.0)
    assert state["x"] == [1]


def test_values_that_are_not_finite_are_left_out():
    curve = Curve()
    for step, value in enumerate([1.0, float("nan"), float("inf"), 2.0]):
        curve.add(step, value)
    assert (curve.x, curve.y) == ([0, 3], [1.0, 2.0])


def test_curve_that_is_cut_forgets_what_is_to_the_right():
    curve = Curve()
    for step in range(5):
        curve.add(step, step)
    curve.cut(2)
    curve.add(3, 30)
    assert curve.x == [0, 1, 2, 3]
    assert curve.y == [0, 1, 2, 30]


@pytest.mark.parametrize("num_points", [0, 1, 2, 5, 100])
def test_smoothing_keeps_length_and_a_constant(num_points):
    assert smooth([3.0] * num_points, 4.0).tolist() == pytest.approx([3.0] * num_points)


def test_smoothing_takes_noise_away_and_does_not_lag():
    ramp = np.arange(200.0)
    noisy = ramp + np.random.default_rng(0).normal(size=200)
    curve = smooth(noisy, 5)
    inner = slice(20, -20)
    assert np.abs(curve - ramp)[inner].max() < 0.5 * np.abs(noisy - ramp)[inner].max()
    assert abs(np.mean((curve - ramp)[inner])) < 0.1

"""LearningRateFinder: which rates it tries, when it ends, and that it puts everything back."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.handlers import LearningRateFinder, learning_rate_finder
from tests.networks import linear_program, linear_reader, one_device

BASE = 0.05


def linear_trainer(**options):
    return ps.Trainer(linear_program, optax.sgd(BASE), place=one_device(), **options)


def search(tmp_path, trainer=None, *, num_epochs=50, **options):
    trainer = trainer or linear_trainer(on_non_finite="skip")
    options = {"base_learning_rate": BASE, "path": tmp_path / "rates.png"} | options
    finder = LearningRateFinder(**options)
    trainer.train(linear_reader(), finder, num_epochs=num_epochs)
    return trainer, finder


def test_rates_grow_by_a_constant_factor_and_losses_are_those_of_training_at_them(tmp_path):
    _, finder = search(tmp_path, low=1e-3, high=0.1, num_steps=20)
    np.testing.assert_allclose(finder.rates, np.geomspace(1e-3, 0.1, 20))
    assert len(finder.losses) == 20
    rates = iter([*finder.rates, 0.1])
    trainer, losses = linear_trainer(), []

    def by_hand(event):
        if isinstance(event, ps.BeginStep):
            trainer.update_scale = next(rates) / BASE
        elif isinstance(event, ps.EndStep):
            losses.append(event.metrics)
            if len(losses) == 21:
                trainer.stop()

    trainer.train(linear_reader(), by_hand, num_epochs=7)
    np.testing.assert_allclose(finder.losses, losses[1:], rtol=1e-5)


def test_divergence_ends_it_early_and_parameters_and_scale_are_put_back(tmp_path):
    trainer = linear_trainer(on_non_finite="skip")
    before, trainer.update_scale = dict(trainer.parameters), 0.5
    _, finder = search(tmp_path, trainer, low=1e-3, high=1e3)
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, before[name])
    assert trainer.update_scale == 0.5
    assert 20 < len(finder.losses) < 90
    assert trainer.global_step < 100
    assert finder.losses[-1] > 4 * min(finder.losses)


@pytest.mark.parametrize("on_non_finite", ["stop", "skip"])
def test_loss_that_is_not_finite_ends_it_and_everything_is_put_back(tmp_path, on_non_finite):
    def program():
        prediction = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(1e30 * prediction**4 * (layers.data("y", shape=[1]) * 0 + 1))

    trainer = ps.Trainer(program, optax.sgd(1.0), place=one_device(), on_non_finite=on_non_finite)
    before = dict(trainer.parameters)
    options = {"low": 1.0, "high": 1e9, "base_learning_rate": 1.0}
    if on_non_finite == "stop":
        with pytest.raises(ps.NonFiniteError):
            search(tmp_path, trainer, **options)
    else:
        _, finder = search(tmp_path, trainer, **options)
        assert finder.suggestion is None
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.quick("1")
@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_suggestion_is_told_with_the_plot_and_is_a_rate_that_trains(
    tmp_path, steps_per_call, capsys
):
    trainer = linear_trainer(on_non_finite="skip", steps_per_call=steps_per_call)
    _, finder = search(tmp_path, trainer, low=1e-4, high=100.0, num_epochs=60)
    assert capsys.readouterr().out == (
        f"LearningRateFinder: the loss falls fastest at a learning rate of {finder.suggestion:.2g};"
        f" see {tmp_path / 'rates.png'}\n"
    )
    assert (tmp_path / "rates.png").stat().st_size > 1000
    assert 1e-3 < finder.suggestion < 0.5
    fresh = ps.Trainer(linear_program, optax.sgd(finder.suggestion), place=one_device())
    before = fresh.test(linear_reader())
    fresh.train(linear_reader(), num_epochs=30)
    assert fresh.test(linear_reader()) < before / 2


def test_training_that_ends_too_soon_suggests_nothing(tmp_path, capsys):
    _, finder = search(tmp_path, num_epochs=2)
    assert finder.suggestion is None
    assert len(finder.losses) == 5
    assert "there were too few steps" in capsys.readouterr().out


def test_training_without_a_step_leaves_no_plot(tmp_path):
    _, finder = search(tmp_path, num_epochs=0)
    assert finder.rates == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("losses", "number"),
    [
        ([9, 9, 9, 8, 5, 2, 1, 0, 4, 9, 30], 4),
        ([9, 9, 9, 9, 8, 7, 6, 5, 9, 1, 30], 8),
        ([5, 5, 4, 3, 2, 0, 20, 60, 90, 30, 31], 4),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], None),
        ([5, 4, 3], None),
    ],
)
def test_steepest_fall_is_sought_below_the_minimum(losses, number):
    rates = [10.0**i for i in range(len(losses))]
    expected = None if number is None else rates[number]
    assert learning_rate_finder._find_steepest(rates, np.array(losses, float)) == expected

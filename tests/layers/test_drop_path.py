"""Drop path: whole examples of a branch, and a rate that changes with the step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import train

FEED = {"x": np.ones([400, 3], np.float32)}


def program(rate):
    def function():
        y = layers.drop_path(layers.data("x", [3]), rate)
        return layers.mean(y), y

    return function


def test_drop_path_drops_whole_examples_and_keeps_the_mean():
    step = train(program(0.25), FEED, is_tested=True)
    y = step.values[1]
    assert (y == y[:, :1]).all()
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    # 400 draws: five standard deviations.
    assert np.mean(y[:, 0] == 0) == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 400))
    np.testing.assert_array_equal(step.test_values[1], FEED["x"])


def test_drop_path_of_a_rate_that_grows_with_the_step_starts_with_everything():
    def function():
        rate = 0.9 * jnp.minimum(layers.global_step() / 2, 1.0)
        y = layers.drop_path(layers.data("x", [3]), rate)
        return layers.mean(y * layers.create_parameter([1, 1])), y

    builder = ps.ProgramBuilder(function, optax.sgd(0.1), place=jax.devices()[:1])
    state, kept = builder.init(), []
    for _ in range(3):
        state, (_, y) = builder.train(state, FEED)
        kept.append(float(np.mean(np.asarray(y) > 0)))
    assert kept[0] == 1.0
    assert kept[1] == pytest.approx(0.55, abs=0.13)
    assert kept[2] == pytest.approx(0.1, abs=0.08)


def test_drop_path_of_everything_says_what_the_number_is():
    with pytest.raises(ProgramError, match=r"drop_prob=1.0, expected a number from 0 to less than"):
        train(program(1.0), FEED)


def test_global_step_counts_training_steps_and_is_0_in_test_and_infer():
    def function():
        spare = layers.create_parameter([1], name="spare", attr=jax.nn.initializers.zeros)
        return layers.mean(layers.data("x", [3])) * spare[0], 1.0 * layers.global_step()

    builder = ps.ProgramBuilder(function, optax.sgd(0.1), infer_func=lambda: function()[1])
    state, seen = builder.init(), []
    for _ in range(3):
        state, (_, step) = builder.train(state, FEED)
        seen.append(float(step))
    assert seen == [0.0, 1.0, 2.0]
    assert float(builder.test(state, FEED)[1]) == 0.0

"""Batch norm against numpy and flax, over the batch and over groups of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.layers.programs import assert_alike, initial, normal, train


def program(**arguments):
    """Normalise `x`, and weigh the result by `w` so that its gradient is not 0."""

    def function():
        y = layers.batch_norm(layers.data("x", [4, 3]), **arguments)
        w = layers.create_parameter([1, 4, 3], name="w", attr=lambda *_: normal(1, 4, 3, seed=7))
        return layers.mean(jnp.tanh(y * w)), y

    return function


FEED = {"x": 3 * normal(12, 4, 3) + 5}


@functools.cache
def measured(num_devices=1, is_tested=False, **arguments):
    """Return a training step of the program."""
    return train(program(**arguments), FEED, num_devices=num_devices, is_tested=is_tested)


def standardised(x, mean, variance):
    return (x - mean) / np.sqrt(variance + 1e-5)


def test_batch_norm_trains_by_the_batch_and_tests_by_the_running_statistics():
    step = measured(is_tested=True)
    mean, variance = FEED["x"].mean((0, 1)), FEED["x"].var((0, 1))
    np.testing.assert_allclose(
        step.values[1], standardised(FEED["x"], mean, variance), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(step.test_values[1], FEED["x"] / np.sqrt(1 + 1e-5), rtol=1e-5)
    statistics = step.batch_stats["batch_norm_0"]
    np.testing.assert_allclose(statistics["mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(statistics["variance"], 0.9 + 0.1 * variance, rtol=1e-5)


def test_batch_norm_warmed_up_has_statistics_of_the_data_after_a_few_steps():
    def statistics(**arguments):
        function = program(momentum=0.9997, **arguments)
        builder = ps.ProgramBuilder(lambda: function()[0], optax.sgd(0.0), place=jax.devices()[:1])
        state = builder.init()
        for seed in range(12):
            state, _ = builder.train(state, {"x": 3 * normal(12, 4, 3, seed=seed) + 5})
        return jax.tree.map(np.asarray, state.variables["batch_stats"]["batch_norm_0"])

    # Each step keeps its share of what there was: 0.1, 2/11, 3/12, ...
    batches = [3 * normal(12, 4, 3, seed=seed) + 5 for seed in range(12)]
    mean = np.zeros(3)
    for step, batch in enumerate(batches):
        kept = (1 + step) / (10 + step)
        mean = kept * mean + (1 - kept) * batch.mean((0, 1))
    warm = statistics(momentum_warmup=True)
    np.testing.assert_allclose(warm["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(warm["variance"], 9, rtol=0.3)
    assert np.all(statistics()["mean"] < 0.1)


@pytest.mark.parametrize("group_size", [5, 4, 1])
def test_batch_norm_of_groups_normalises_each_by_itself_and_keeps_their_mean(group_size):
    step = measured(group_size=group_size)
    cuts = range(group_size, 12, group_size)
    parts = np.split(FEED["x"], cuts)
    expected = [standardised(part, part.mean((0, 1)), part.var((0, 1))) for part in parts]
    np.testing.assert_allclose(step.values[1], np.concatenate(expected), rtol=1e-3, atol=1e-4)
    shares = [len(part) / 12 for part in parts]
    mean = np.dot(shares, [part.mean((0, 1)) for part in parts])
    variance = np.dot(shares, [part.var((0, 1)) for part in parts])
    statistics = step.batch_stats["batch_norm_0"]
    np.testing.assert_allclose(statistics["mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(statistics["variance"], 0.9 + 0.1 * variance, rtol=1e-5)


def test_batch_norm_of_groups_has_the_gradients_of_its_groups():
    whole = measured(group_size=5).gradients
    parts = [train(program(), {"x": part}).gradients for part in np.split(FEED["x"], [5, 10])]
    shares = (5 / 12, 5 / 12, 2 / 12)
    expected = jax.tree.map(lambda *leaves: np.tensordot(shares, leaves, 1), *parts)
    assert_alike(whole, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("group_size", [12, 100])
def test_batch_norm_of_a_group_as_large_as_the_batch_is_that_of_the_batch(group_size):
    assert_same(measured(), measured(group_size=group_size))


def test_batch_norm_counts_groups_in_examples_where_an_example_has_several_rows():
    def function(**arguments):
        def rows():
            y = layers.batch_norm(layers.flatten(layers.data("x", [4, 3]), axis=2), **arguments)
            return layers.mean(y**2), y.reshape(-1, 4, 3)  # from [B * 4, 3]

        return rows

    expected = measured(group_size=5)
    step = train(function(group_size=5), FEED)
    np.testing.assert_allclose(step.values[1], expected.values[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("group_size", [None, 2])
def test_batch_norm_of_sequences_counts_words_alone(group_size):
    def function():
        words = layers.batch_norm(layers.data("x", [3], lod_level=1), group_size=group_size)
        return layers.mean(words)

    rows = [3 * normal(length, 3, seed=length) + 5 for length in (4, 1, 2, 7, 0)]
    step = train(function, {"x": rows}, num_devices=2)
    size = group_size or 5
    groups = [np.concatenate(rows[i : i + size]) for i in range(0, 5, size)]
    mean = sum(len(g) / 14 * g.mean(0) for g in groups if len(g))
    variance = sum(len(g) / 14 * g.var(0) for g in groups if len(g))
    statistics = step.batch_stats["batch_norm_0"]
    np.testing.assert_allclose(statistics["mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(statistics["variance"], 0.9 + 0.1 * variance, rtol=1e-5)


def assert_same(expected, actual):
    """Two training steps agree in values, gradients and statistics."""
    got, wanted = ((step.values, step.gradients, step.batch_stats) for step in (actual, expected))
    assert_alike(got, wanted, rtol=1e-4, atol=2e-6)


def test_batch_norm_use_global_stats_trains_by_the_running_statistics_and_keeps_them():
    step = measured(is_tested=True, use_global_stats=True)
    np.testing.assert_allclose(step.values[1], step.test_values[1], rtol=1e-6)
    assert step.batch_stats["batch_norm_0"]["mean"].tolist() == [0, 0, 0]
    assert step.batch_stats["batch_norm_0"]["variance"].tolist() == [1, 1, 1]


def train_near(x, mean):
    """Train a step from a running mean, and the variance of the data."""

    def normalise():
        y = layers.batch_norm(layers.data("x", [64]))
        return layers.mean(y), y

    statistics = {"batch_norm_0": {"mean": mean, "variance": x.var(0)}}
    near = {"params": initial(normalise)["params"], "batch_stats": statistics}
    return train(normalise, {"x": x}, variables=near)


def test_batch_norm_becomes_exact_as_the_running_mean_approaches():
    # Mean 1000, deviation 1: a variance computed as E[x^2] - E[x]^2 in float32 is off by 0.06.
    x = 1000 + normal(256, 64)
    step = train_near(x, x.mean(0) + 1)
    variance = step.batch_stats["batch_norm_0"]["variance"]
    np.testing.assert_allclose(variance, x.var(0), rtol=1e-5)


def test_batch_norm_of_float64_computes_in_it_and_keeps_float32_statistics():
    x = np.random.default_rng(0).normal(5.0, 3.0, [12, 4, 3])

    def function():
        y = layers.batch_norm(layers.data("x", [4, 3], "float64"))
        return layers.mean(y), y

    with jax.enable_x64(True):
        step = train(function, {"x": x}, is_tested=True)
    expected = standardised(x, x.mean((0, 1)), x.var((0, 1)))
    np.testing.assert_allclose(step.values[1], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(step.test_values[1], x / np.sqrt(1 + 1e-5), rtol=1e-14)
    assert {value.dtype for value in jax.tree.leaves(step.batch_stats)} == {np.dtype("float32")}


def test_batch_norm_shared_by_name_moves_its_statistics_twice():
    def function():
        y = layers.batch_norm(layers.data("x", [4, 3]), name="shared")
        return layers.mean(y + layers.batch_norm(layers.data("x", [4, 3]), name="shared"))

    statistics = train(function, FEED).batch_stats["shared"]
    np.testing.assert_allclose(statistics["mean"], 0.19 * FEED["x"].mean((0, 1)), rtol=1e-5)


def test_batch_norm_without_scale_and_bias_has_no_parameters():
    variables = initial(
        lambda: layers.batch_norm(layers.data("x", [3]), param_attr=False, bias_attr=False)
    )
    assert not variables["params"]
    assert sorted(variables["batch_stats"]["batch_norm_0"]) == ["mean", "variance"]


def test_batch_norm_moves_the_running_variance_towards_the_unbiased_one_when_asked():
    step = measured(unbiased_running_variance=True)
    expected = 0.9 + 0.1 * FEED["x"].var((0, 1), ddof=1)
    np.testing.assert_allclose(step.batch_stats["batch_norm_0"]["variance"], expected, rtol=1e-5)
    biased = measured()
    np.testing.assert_allclose(step.values[1], biased.values[1], rtol=1e-5, atol=1e-6)


def test_batch_norm_of_one_element_has_a_finite_unbiased_variance():
    def function():
        return layers.mean(layers.batch_norm(layers.data("x", [3]), unbiased_running_variance=True))

    step = train(function, {"x": normal(1, 3)})
    np.testing.assert_allclose(step.batch_stats["batch_norm_0"]["variance"], 0.9, rtol=1e-6)


def test_batch_norm_takes_an_epsilon_that_is_an_array():
    trained = train(program(epsilon=jnp.float32(1e-5)), FEED)
    assert_same(trained, measured())

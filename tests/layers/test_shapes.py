"""Joining, flattening, encoding and comparing arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from tests.layers.programs import assert_alike, normal, train


def inputs(*shapes):
    return [layers.data(f"x{i}", shape) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("axis", [0, -2])
def test_concat_along_the_batch_joins_examples_on_any_number_of_devices(axis):
    def function():
        both = layers.concat(inputs([4], [4]), axis=axis)
        return layers.mean(layers.fc(both, 3) ** 2), both[::2]

    feed = {"x0": normal(5, 4), "x1": normal(5, 4, seed=1)}
    one, three = (train(function, feed, num_devices=n) for n in (1, 3))
    np.testing.assert_array_equal(one.values[1], np.concatenate(list(feed.values()))[::2])
    actual, expected = ((step.values, step.gradients) for step in (three, one))
    assert_alike(actual, expected, rtol=1e-5)


@pytest.mark.parametrize(("axis", "shape"), [(1, (2, 12)), (2, (6, 4)), (3, (24, 1))])
def test_flatten_keeps_two_axes(axis, shape):
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(layers.flatten(x, axis=axis), x.reshape(shape))


@pytest.mark.parametrize("ids", [[2, 0, 1], [[2, 0], [1, 3]]])
def test_one_hot_has_one_row_for_each_class_and_nan_for_one_outside(ids):
    ids = np.array(ids)
    np.testing.assert_array_equal(layers.one_hot(ids, 4), np.eye(4)[ids])
    np.testing.assert_array_equal(layers.one_hot(ids[..., None], 4), np.eye(4)[ids])
    rows = layers.one_hot(np.array([[-1], [4], [3]]), 4)
    assert np.isnan(rows).all(axis=1).tolist() == [True, True, False]
    with jax.enable_x64(True):
        assert layers.one_hot(ids, 4).dtype == "float32"


@pytest.mark.parametrize("length", [1e-30, 1e-6, 1e25])
def test_cos_sim_and_its_direction_do_not_depend_on_the_length_of_a_row(length):
    # A power of two, so that the rows are exactly the scaled ones.
    factor = np.float32(2.0 ** np.round(np.log2(length)))
    x, y = normal(3, 6), normal(3, 6, seed=1)

    @jax.jit
    def run(x, y):
        return jax.value_and_grad(lambda x: jnp.sum(layers.cos_sim(x, y)))(x)

    (value, gradient), (expected, slope) = run(factor * x, factor * y), run(x, y)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(factor * gradient, slope, rtol=1e-4, atol=1e-5)


def test_cos_sim_of_zeros_has_a_finite_gradient():
    value, gradient = jax.value_and_grad(lambda x: layers.cos_sim(x, normal(1, 3))[0, 0])(
        jnp.zeros([1, 3])
    )
    assert value == 0
    assert np.isfinite(gradient).all()

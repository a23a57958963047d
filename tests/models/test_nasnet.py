"""NASNet and PNASNet: their cells, how paths are dropped, what their parameters are called."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, models
from penstock.layers import _convolution
from penstock.layers.initializers import he_fan_out
from penstock.models.nasnet import Cells, decays_all_kernels, nasnet
from tests.layers.programs import infer
from tests.models.shapes import shapes_of

SETTINGS = models.get("nasnet_mobile").settings


def small(network=nasnet, settings=SETTINGS, **options):
    """Return a network of three cells and few filters."""
    widths = {"num_cells": 3, "num_filters": 8, "num_stem_filters": 6, **options}
    return functools.partial(network, settings=settings, **widths)


def run_in_program(function, x, mode="infer", step=0):
    """Return what a function of Cells makes of an array, in training at a step or in infer mode."""

    def program():
        return layers.data("x", list(x.shape[1:]))

    def trained():
        weight = layers.create_parameter([1], name="spare")
        y = function(program())
        return layers.mean(weight), y

    if mode == "infer":
        return np.asarray(infer(lambda: function(program()), {"x": x}))
    builder = ps.ProgramBuilder(trained, optax.sgd(0.0), place=jax.devices()[:1])
    state = builder.init()._replace(step=jnp.int32(step))
    return np.asarray(builder.train(state, {"x": x})[1][1])


@pytest.mark.quick("0-3-0.0", "50-3-0.25")
@pytest.mark.parametrize(
    ("step", "number", "share"),
    [(0, 3, 0.0), (50, 3, 0.25), (100, 3, 0.5), (1000, 3, 0.5), (100, 0, 0.125), (50, 1, 0.125)],
)
def test_paths_are_dropped_more_in_later_cells_and_at_later_steps(step, number, share):
    settings = models.Settings(drop_path=0.5, drop_path_steps=100).over(SETTINGS)
    cells = Cells(settings, num_cells=4)
    ones = np.ones([256, 2, 2, 1], np.float32)
    y = run_in_program(lambda x: cells._drop_path(x, number), ones, "train", step)
    kept = y[y != 0]
    np.testing.assert_allclose(kept, 1 / (1 - share), rtol=1e-6)
    assert abs(1 - kept.size / y.size - share) <= 0.1
    assert (y.reshape(256, -1) == y[:, 0, :1, 0]).all()  # of an example all or nothing


@pytest.mark.quick("max_pool-0.0-4", "4444-5")
@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize(("pool", "corner"), [("max_pool", 0.0), ("avg_pool", -4 / 9)])
def test_keras_pools_over_borders_of_zeros_and_slim_leaves_them_out(size, pool, corner):
    image = -np.ones([1, size, size, 1], np.float32)

    def pooled(has_zero_borders, stride):
        cells = Cells(SETTINGS, 1, has_zero_borders)
        return run_in_program(
            lambda x: cells._apply_term("left", [x], ((pool, 3), 0), 1, stride, 0), image
        )

    slim, keras = pooled(False, 2), pooled(True, 2)
    assert keras.shape == slim.shape == (1, (size + 1) // 2, (size + 1) // 2, 1)
    np.testing.assert_array_equal(slim, -1)
    np.testing.assert_allclose(keras[0, -1, -1, 0], corner, rtol=1e-6)
    # Images of an even size have their border below and on the right alone.
    np.testing.assert_allclose(keras[0, 0, 0, 0], corner if size % 2 else -1, rtol=1e-6)
    np.testing.assert_array_equal(pooled(True, 1), -1)


@pytest.mark.parametrize(
    ("shape", "fan_out"), [((3, 3, 64, 32), 288), ((7, 7, 512, 1), 49), ((100, 80), 80)]
)
def test_kernels_begin_with_the_deviation_of_their_fan_out(shape, fan_out):
    drawn = np.asarray(he_fan_out(jax.random.key(0), shape, np.dtype("float32")))
    deviation = (2.6 / fan_out) ** 0.5
    assert abs(drawn).max() <= 2 * deviation + 1e-6
    # What is left of a normal distribution that is cut at two deviations has 0.8796 of one.
    np.testing.assert_allclose(drawn.std(), 0.8796 * deviation, rtol=0.03)


@pytest.mark.slow
def test_weight_decay_touches_depthwise_kernels_too():
    decayed = {path for path in shapes_of(small(), 64).trained if decays_all_kernels(path)}
    assert "cell_0/comb_iter_0/left/separable_5x5_1/depthwise" in decayed
    assert "aux_1/aux_logits/FC/fc/w" in decayed
    left = set(shapes_of(small(), 64).trained) - decayed
    assert {path.rsplit("/", 1)[1] for path in left} == {"scale", "bias", "b"}


@pytest.mark.slow  # it compiles for a minute
def test_small_network_trains_with_dropped_paths(monkeypatch):
    # By taps depthwise convolutions run ten times faster and compile twice as long.
    monkeypatch.setattr(_convolution, "_MOST_TAPS", 0)
    settings = models.Settings(drop_path=0.3, drop_path_steps=0, dropout=0.1).over(SETTINGS)
    network = small(settings=settings)

    def program():
        logits, end_points = network(layers.data("image", [32, 32, 3]), 4)
        label = layers.data("label", [1], "int32")
        losses = [
            layers.mean(layers.softmax_with_cross_entropy(scores, label))
            for scores in (logits, end_points["AuxLogits"])
        ]
        return losses[0] + 0.4 * losses[1]

    builder = ps.ProgramBuilder(program, optax.adam(1e-2), place=jax.devices()[:1])
    image = np.random.default_rng(0).uniform(-1, 1, [8, 32, 32, 3]).astype(np.float32)
    batch = {"image": image, "label": np.arange(8)[:, None] % 4}
    state, losses = builder.init(), []
    for _ in range(5):
        state, loss = builder.train(state, batch)
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]

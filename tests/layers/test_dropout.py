"""Dropout, of elements and of paths: its rate, its scale, and what its mask depends on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, normal, train

FEED = {"x": np.ones([64, 200], np.float32)}


def program(*args, **kwargs):
    def function():
        y = layers.dropout(layers.data("x", [200]), *args, **kwargs)
        return layers.mean(y), y

    return function


@functools.cache
def measured(rate, kind="upscale_in_train"):
    """Return a training step, and what a test gave before."""
    return train(program(rate, dropout_implementation=kind), FEED, is_tested=True)


@pytest.mark.quick("0.1")
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("kind", ["upscale_in_train", "downgrade_in_infer"])
def test_dropout_drops_its_share_and_keeps_the_mean(rate, kind):
    step = measured(rate, kind)
    y, kept = step.values[1], 1 - rate
    scale = 1 / kept if kind == "upscale_in_train" else 1
    np.testing.assert_allclose(np.unique(y), [0, scale], rtol=1e-6)
    # 12800 draws: five standard deviations.
    assert np.mean(y == 0) == pytest.approx(rate, abs=5 * np.sqrt(rate * kept / y.size))
    np.testing.assert_allclose(step.test_values[1], 1 if scale != 1 else kept, rtol=1e-6)


def test_dropout_draws_the_same_mask_in_x64_mode():
    with jax.enable_x64(True):
        step = train(program(0.1), FEED)
    np.testing.assert_array_equal(step.values[1], measured(0.1).values[1])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_dropout_of_nothing_or_everything_is_finite(rate):
    step = measured(rate)
    assert np.unique(step.values[1]).tolist() == [1 - rate]


@pytest.mark.parametrize("kind", ["upscale_in_train", "downgrade_in_infer"])
def test_dropout_of_a_rate_of_numpy_keeps_the_dtype(kind):
    def function():
        x = layers.data("x", [4], "bfloat16")
        dropped = [layers.dropout(x, np.float64(0.5), None, kind, training=on) for on in (0, 1)]
        return [y.dtype == x.dtype for y in dropped]

    assert all(infer(function, {"x": normal(2, 4)}))


def test_dropout_of_one_name_shares_its_mask():
    def function():
        x = layers.data("x", [200])
        a, b = layers.dropout(x, 0.5, name="mask"), layers.dropout(x, 0.5, name="mask")
        return layers.mean(x), a, b

    _, a, b = train(function, FEED).values
    np.testing.assert_array_equal(a, b)


def test_dropout_inside_scan_uses_one_mask_for_all_iterations():
    def function():
        x = layers.data("x", [200])
        _, y = jax.lax.scan(lambda c, _: (c, layers.dropout(x, 0.5)), 0, None, length=3)
        return layers.mean(x), y.swapaxes(0, 1)

    y = train(function, FEED).values[1]
    np.testing.assert_array_equal(y[:, 0], y[:, 2])
    assert 0 < np.mean(y == 0) < 1


def test_dropout_that_is_asked_for_drops_in_test_and_infer_too():
    def network():
        x = layers.data("x", [100])
        return [layers.dropout(x, 0.5, name=f"sample_{k}", training=True) for k in range(3)]

    def program():
        x = layers.data("x", [100])
        kept = layers.dropout(x, 0.5, training=False)
        return layers.mean(kept), layers.mean(layers.dropout(kept, 0.5, training=True))

    trainer = ps.Trainer(program, infer_func=network, place="cpu")
    feed = {"x": np.ones((8, 100), np.float32)}
    first, second, third = trainer.infer(feed)
    for answer in (first, second, third):
        assert set(np.unique(answer)) == {0.0, 2.0}
        assert abs(answer.mean() - 1) < 0.2
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)
    np.testing.assert_array_equal(trainer.infer(feed)[0], first)
    kept, dropped = trainer.test([feed])
    assert kept == 1
    assert dropped != 1


def test_dropout_counts_its_name_in_every_mode():
    def function():
        x = layers.dropout(layers.data("x", [200]), 0.5)
        layers.dropout(x, 0.5, name="dropout_1")
        return layers.dropout(x, 0.5)

    with pytest.raises(ProgramError, match=r"layers.dropout got the name 'dropout_1'"):
        ps.ProgramBuilder(infer_func=function)


ONES = {"x": np.ones([400, 3], np.float32)}


def test_drop_path_drops_whole_examples_and_keeps_the_mean():
    def function():
        y = layers.drop_path(layers.data("x", [3]), 0.25)
        return layers.mean(y), y

    step = train(function, ONES, is_tested=True)
    y = step.values[1]
    assert (y == y[:, :1]).all()
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    # 400 draws: five standard deviations.
    assert np.mean(y[:, 0] == 0) == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 400))
    np.testing.assert_array_equal(step.test_values[1], ONES["x"])


def test_drop_path_of_a_rate_that_grows_with_the_step_starts_with_everything():
    def function():
        rate = 0.9 * jnp.minimum(layers.global_step() / 2, 1.0)
        y = layers.drop_path(layers.data("x", [3]), rate)
        return layers.mean(y * layers.create_parameter([1, 1])), y

    builder = ps.ProgramBuilder(function, optax.sgd(0.1), place=jax.devices()[:1])
    state, kept = builder.init(), []
    for _ in range(3):
        state, (_, y) = builder.train(state, ONES)
        kept.append(float(np.mean(np.asarray(y) > 0)))
    assert kept[0] == 1.0
    assert kept[1] == pytest.approx(0.55, abs=0.13)
    assert kept[2] == pytest.approx(0.1, abs=0.08)


def test_global_step_counts_training_steps_and_is_0_in_test_and_infer():
    def function():
        spare = layers.create_parameter([1], name="spare", attr=jax.nn.initializers.zeros)
        return layers.mean(layers.data("x", [3])) * spare[0], 1.0 * layers.global_step()

    builder = ps.ProgramBuilder(function, optax.sgd(0.1), infer_func=lambda: function()[1])
    state, seen = builder.init(), []
    for _ in range(3):
        state, (_, step) = builder.train(state, ONES)
        seen.append(float(step))
    assert seen == [0.0, 1.0, 2.0]
    assert float(builder.test(state, ONES)[1]) == 0.0

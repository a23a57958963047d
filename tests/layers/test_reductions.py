"""Reductions over a batch: those of `jax.numpy`, on one device and on several."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.layers.programs import infer, initial, normal, train

REDUCTIONS = [name for name in layers.__all__ if name.startswith("reduce_")]
FEED = {"x": normal(11, 3, 5), "y": np.arange(11, dtype=np.int32)[:, None] % 5}


def function():
    x = layers.data("x", [3, 5])
    scores = layers.fc(x, 5, name="scores")
    label = layers.data("y", [1], "int32")
    loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
    rows = layers.flatten(x, axis=2)
    return (
        loss,
        layers.accuracy(scores, label),
        layers.accuracy(scores, label, k=2),
        layers.mean(x),
        layers.mean(rows),
        layers.mean(layers.create_parameter([7], name="w", attr=lambda *_: np.arange(7.0))),
    )


def test_reductions_equal_optax_and_numpy():
    values = train(function, FEED).values
    params = initial(function)["params"]["scores"]
    scores = FEED["x"].reshape(11, 15) @ params["w"] + params["b"]
    label = FEED["y"][:, 0]
    loss = optax.softmax_cross_entropy_with_integer_labels(scores, label).mean()
    best = np.argsort(-scores, axis=1)
    expected = [
        loss,
        np.mean(best[:, 0] == label),
        np.mean((best[:, :2] == label[:, None]).any(axis=1)),
        FEED["x"].mean(),
        FEED["x"].mean(),
        3,
    ]
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_half_precision_is_added_up_in_float32_and_statistics_of_a_batch_stay_so():
    def program():
        x = layers.data("x", [3, 5])
        half, ones = (100 + x).astype(jnp.float16), layers.data("one", [1]).astype(jnp.float16)
        statistics = [layers.reduce_mean(half, dim=dim) for dim in (0, [0, 1], 1)]
        mean = layers.mean(x.swapaxes(0, 1))  # takes the batch axis wherever it is
        return statistics, layers.reduce_sum(100 * ones, dim=0), layers.mean(ones), mean

    feed = {"x": np.tile(FEED["x"], (400, 1, 1))[:4096], "one": np.ones([4096, 1], np.float32)}
    statistics, total, one, mean = infer(program, feed)
    assert [str(statistic.dtype) for statistic in statistics] == ["float32", "float32", "float16"]
    assert (float(total[0]), total.dtype) == (409600, np.float32)
    assert one == 1
    np.testing.assert_allclose(mean, feed["x"].mean(), rtol=1e-4)


def test_accuracy_takes_the_classes_that_top_k_takes_and_a_label_that_is_none_is_wrong():
    def program():
        scores = layers.data("x", [6])
        label = layers.data("y", [1], "int32")
        words = layers.data("words", [2, 3]), layers.data("tags", [2], "int32")
        return {
            "of words": layers.accuracy(*words),
            **{
                k: (
                    layers.accuracy(scores, label, k=k),
                    jnp.any(jax.lax.top_k(scores, k)[1] == label, axis=1),
                )
                for k in (1, 2, 5)
            },
        }

    scores = np.round(normal(60, 6), 1)  # with ties, of which the lower class comes first
    scores[3::7] = 1
    scores[::7, 2] = np.inf
    scores[1::7, 4] = -np.inf
    scores[2::7, 3] = np.nan
    words = [[[3.0, 1, 2], [1, 3, 2]], [[1, 2, 3], [3, 1, 2]]] * 30
    feed = {"x": scores, "y": np.arange(60)[:, None] % 7 - 1, "words": words}
    results = infer(program, {**feed, "tags": [[0, 0], [2, 0]] * 30})
    assert results.pop("of words") == 0.75  # every word counts
    for k, (accuracy, is_right) in results.items():
        assert accuracy == pytest.approx(np.mean(is_right)), k
        assert not is_right[feed["y"][:, 0] == -1].any()


# Gradients of reductions.


@pytest.mark.quick("reduce_mean")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_has_the_values_and_gradients_of_jax_numpy(name):
    reduce = getattr(layers, name)
    reference = getattr(jnp, name.removeprefix("reduce_"))
    x = np.round(normal(11, 3), 1)
    x[4] = x[2]  # with ties

    def program():
        h = layers.data("x", [3]) * layers.create_parameter([1, 3], name="w")
        total = reduce(h)
        of_columns = reduce(h, dim=0)
        kept = reduce(h, dim=[0, -1], keep_dim=True)
        loss = (total + of_columns.sum() + kept.sum()).astype(jnp.float32)
        return {
            "loss": loss,
            "all": total,
            "columns": of_columns,
            "kept": kept,
            "rows": reduce(h, dim=np.int64(1)),
        }

    builder = ps.ProgramBuilder(program, optax.sgd(1.0), place=jax.devices()[:3])
    state = builder.init()
    w = np.asarray(state.variables["params"]["w"])
    after, values = builder.train(state, {"x": x})

    def expected(w):
        h = x * w
        parts = reference(h), reference(h, axis=0), reference(h, axis=(0, 1), keepdims=True)
        return parts[0] + parts[1].sum() + parts[2].sum().astype(jnp.float32), parts

    (_, parts), gradient = jax.value_and_grad(expected, has_aux=True)(jnp.asarray(w))
    for got, wanted in zip((values[k] for k in ("all", "columns", "kept")), parts, strict=True):
        np.testing.assert_allclose(got, np.asarray(wanted, np.float32), rtol=1e-5, atol=1e-6)
    moved = w - np.asarray(after.variables["params"]["w"])
    np.testing.assert_allclose(moved, gradient, rtol=1e-4, atol=1e-5)
    assert values["rows"].shape == (11,)

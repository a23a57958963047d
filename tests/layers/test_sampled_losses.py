"""NCE against its formula and its expectation, the hierarchical sigmoid against its tree."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.layers import sampled_losses
from tests.layers import alone
from tests.layers.programs import infer, initial, normal

SIZE, WIDTH, BATCH = 12, 4, 6
X = normal(BATCH, WIDTH)
LABELS = np.random.default_rng(0).integers(0, SIZE, (BATCH, 2)).astype(np.int32)
PARAMS = {"out": {"w": normal(SIZE, WIDTH, seed=1), "b": normal(SIZE, 1, seed=2)}}
CUSTOM = np.linspace(0, 2, SIZE) / SIZE

PROBABILITIES = {
    "uniform": np.full(SIZE, 1 / SIZE),
    "log_uniform": np.diff(np.log(np.arange(1, SIZE + 2))) / np.log(SIZE + 1),
    "custom_dist": CUSTOM,
}


def options(sampler):
    return {"sampler": sampler} | ({"custom_dist": CUSTOM} if sampler == "custom_dist" else {})


def nce(x, label, sampler="uniform", **keywords):
    return layers.nce(x, label, SIZE, name="out", **options(sampler), **keywords)


@pytest.fixture
def draws(monkeypatch):
    """Collect the labels and the noise that the layer asks probabilities of."""
    seen = []
    make = sampled_losses._make_noise

    def watch(*args):
        noise = make(*args)

        def log_probability(ids):
            jax.debug.callback(lambda ids: seen.append(np.asarray(ids)), ids)
            return noise.log_probability(ids)

        return noise._replace(log_probability=log_probability)

    monkeypatch.setattr(sampled_losses, "_make_noise", watch)
    return seen


@pytest.mark.parametrize("sampler", PROBABILITIES)
def test_nce_is_its_formula_for_what_it_draws(draws, sampler):
    weight = np.arange(1.0, BATCH + 1, dtype=np.float32)[:, None]
    out = jax.jit(
        lambda x: alone.run(lambda: nce(x, LABELS, sampler, sample_weight=weight), PARAMS, BATCH)
    )(X)
    jax.effects_barrier()
    assert draws[0].shape == (BATCH, 12)
    np.testing.assert_array_equal(draws[0][:, :2], LABELS)
    w, b = (PARAMS["out"][leaf].astype(float) for leaf in "wb")
    for row in range(BATCH):
        cost = 0.0
        for place, c in enumerate(draws[0][row]):
            o = 1 / (1 + np.exp(-(X[row] @ w[c] + b[c, 0])))
            q = PROBABILITIES[sampler][c] * 10
            cost += -np.log(o / (o + q)) if place < 2 else -np.log(q / (o + q))
        np.testing.assert_allclose(out[row, 0], cost / 11 * (row + 1), rtol=1e-5)


@pytest.mark.parametrize("sampler", PROBABILITIES)
def test_noise_has_the_distribution_that_its_probabilities_say(sampler):
    custom = CUSTOM.tolist() if sampler == "custom_dist" else None
    noise = sampled_losses._make_noise(sampler, SIZE, custom)

    @jax.jit
    def run(key):
        return noise.draw(key, (100_000,)), jnp.exp(noise.log_probability(jnp.arange(SIZE)))

    drawn, expected = map(np.asarray, run(jax.random.key(0)))
    shares = np.bincount(drawn, minlength=SIZE) / len(drawn)
    np.testing.assert_allclose(shares, expected, atol=0.006)
    np.testing.assert_allclose(expected, PROBABILITIES[sampler], rtol=1e-4)
    np.testing.assert_allclose(expected.sum(), 1, rtol=1e-5)


def program(**keywords):
    label = layers.data("label", [2], "int32")
    return layers.nce(layers.data("x", [WIDTH]), label, SIZE, name="out", **keywords)


def test_noise_is_the_same_on_any_number_of_devices_and_another_for_each_example():
    variables = {"params": PARAMS}
    feed = {"x": X[[0] * BATCH], "label": LABELS[[0] * BATCH]}
    one, three = (infer(program, feed, variables, num_devices=n) for n in (1, 3))
    np.testing.assert_allclose(one, three, rtol=1e-6)
    assert len(np.unique(one)) > 3
    np.testing.assert_array_equal(one, infer(program, feed, variables))


def test_noise_differs_from_step_to_step_unless_a_seed_is_given():
    def both():
        x, label = layers.data("x", [WIDTH]), layers.data("label", [2], "int32")
        free, seeded = (layers.mean(nce(x, label, seed=seed)) for seed in (0, 5))
        return free + seeded, free, seeded

    builder = ps.ProgramBuilder(both, optax.sgd(0.0), place=jax.devices()[:1])
    state, losses = builder.init(seed=0), []
    for _ in range(3):
        state, (_, *values) = builder.train(state, {"x": X, "label": LABELS})
        losses.append([float(value) for value in values])
    free, seeded = zip(*losses, strict=True)
    assert (len(set(free)), len(set(seeded))) == (3, 1)


def test_hsigmoid_probabilities_of_all_classes_sum_to_1():
    def all_classes(size):
        labels = np.arange(size, dtype=np.int32)[:, None]
        rows = jnp.tile(X[:1], (size, 1))
        params = {"out": {leaf: value[: size - 1] for leaf, value in PARAMS["out"].items()}}
        return alone.run(lambda: layers.hsigmoid(rows, labels, size, name="out"), params, size)

    for losses in jax.jit(lambda: [all_classes(size) for size in (2, 7, 8, 12)])():
        np.testing.assert_allclose(np.exp(-losses).sum(), 1, rtol=1e-5)


def test_parameters_have_fluids_shapes_and_may_lack_a_bias():
    def both():
        x, label = layers.data("x", [WIDTH]), layers.data("label", [1], "int32")
        with_bias = layers.nce(x, label, SIZE), layers.hsigmoid(x, label, SIZE)
        without = layers.nce(x, label, SIZE, bias_attr=False)
        return *with_bias, without, layers.hsigmoid(x, label, SIZE, bias_attr=False)

    params = initial(both)["params"]
    shapes = jax.tree.map(np.shape, params, is_leaf=lambda x: isinstance(x, np.ndarray))
    assert shapes["nce_0"] == {"w": (SIZE, WIDTH), "b": (SIZE, 1)}
    assert shapes["hsigmoid_0"] == {"w": (SIZE - 1, WIDTH), "b": (SIZE - 1, 1)}
    assert list(shapes["nce_1"]) == list(shapes["hsigmoid_1"]) == ["w"]
    assert not params["nce_0"]["b"].any()


def test_a_label_that_is_no_class_is_nan_for_its_example_alone_and_an_ignored_one_0():
    def function():
        x, label = layers.data("x", [WIDTH]), layers.data("label", [1], "int32")
        return [layer(x, label, SIZE)[:, 0] for layer in (layers.nce, layers.hsigmoid)]

    for losses in infer(function, {"x": X[:5], "label": [[0], [-1], [SIZE], [SIZE - 1], [-100]]}):
        assert np.isnan(losses).tolist() == [False, True, True, False, False]
        assert losses[0] > 0
        assert losses[4] == 0


def test_extreme_scores_have_finite_losses_and_gradients():
    def total(x, params):
        nothing = [0.0] + [1 / (SIZE - 1)] * (SIZE - 1)
        label = np.zeros([2, 1], np.int32)
        noisy = layers.nce(x, label, SIZE, name="out", sampler="custom_dist", custom_dist=nothing)
        return jnp.sum(noisy + layers.hsigmoid(x, label, SIZE, name="tree"))

    params = {**PARAMS, "tree": {leaf: value[1:] for leaf, value in PARAMS["out"].items()}}
    x = jnp.asarray(X[:2] * np.array([[1e4], [-1e4]], np.float32))
    loss, gradients = jax.jit(
        jax.value_and_grad(lambda x, p: alone.run(lambda: total(x, p), p, 2), (0, 1))
    )(x, params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((loss, gradients)))

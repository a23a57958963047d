"""`monte_carlo`: mean and deviation of runs in which dropout drops."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import assert_close


def network(x):
    hidden = layers.batch_norm(layers.fc(x, size=16), act="relu")
    return layers.fc(layers.drop_path(layers.dropout(hidden, 0.5), 0.2), size=3, act="softmax")


def infer_program():
    return network(layers.data("x", shape=[4]))


def train_program():
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.cross_entropy(infer_program(), label))


X = np.random.default_rng(0).normal(size=(21, 4)).astype(np.float32)


def make(infer_func, place=None):
    return ps.ProgramBuilder(train_program, optax.sgd(0.1), infer_func=infer_func, place=place)


def test_moments_are_those_of_single_runs():
    def scaled():
        x = layers.data("x", shape=[4])
        return {"x": x * jax.random.uniform(layers.random_key("noise"), (), minval=1.0, maxval=3.0)}

    answer = make_alone(scaled, 1).infer({}, {"x": X})["mean"]["x"]
    factors = [answer[0, 0] / X[0, 0]]
    many = make_alone(scaled, 500).infer({}, {"x": X})
    assert 1 < factors[0] < 3
    assert np.isclose(many["mean"]["x"][0, 0] / X[0, 0], 2, atol=0.1)
    # Of a uniform distribution of width 2.
    ratio = many["deviation"]["x"] / np.abs(X)
    assert np.allclose(ratio, 2 / 12**0.5, atol=0.05)


def test_deviation_of_half_precision_is_computed_in_float32():
    def signs():
        x = layers.data("x", shape=[4])
        return 3000 * jax.random.rademacher(layers.random_key("sign"), x.shape, np.float16)

    deviation = make_alone(signs, 50).infer({}, {"x": X})["deviation"]
    assert deviation.dtype == np.float16
    assert (deviation > 2500).all()
    assert (deviation <= 3000).all()


def make_alone(program, num_samples):
    return ps.ProgramBuilder(infer_func=layers.monte_carlo(program, num_samples))


def test_answers_are_the_same_on_any_number_of_devices_and_rows():
    whole, few = (make(layers.monte_carlo(infer_program, 5), p) for p in (None, jax.devices()[:3]))
    state = whole.init()
    answer = whole.infer(state, {"x": X})
    assert answer["deviation"].min() > 0
    assert_close(few.infer(few.init(), {"x": X}), answer)
    assert_close(whole.infer(state, {"x": X[:7]}), jax.tree.map(lambda x: x[:7], answer))


def test_words_keep_their_lengths_and_training_its_gradients():
    def tag(words):
        return layers.dropout(layers.fc(layers.embedding(words, [16, 8]), size=4), 0.5)

    def train_words():
        words = layers.data("words", shape=[1], dtype="int32", lod_level=1, buckets=[8])
        return layers.mean(layers.monte_carlo(tag, 3)(words)["mean"])

    def infer_words():
        words = layers.data("words", shape=[1], dtype="int32", lod_level=1, buckets=[8])
        return layers.monte_carlo(tag, 3)(words)

    feed = {"words": [np.arange(n, dtype=np.int32) for n in (3, 8, 1)]}
    builder = ps.ProgramBuilder(train_words, optax.sgd(0.1), infer_func=infer_words)
    state, loss = builder.train(builder.init(), feed)
    assert np.isfinite(loss)
    assert [len(sequence) for sequence in builder.infer(state, feed)["deviation"]] == [3, 8, 1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: layers.monte_carlo(network, 0), "num_samples got 0, expected an integer of 1"),
        (
            lambda: make(layers.monte_carlo(lambda: infer_program().argmax(1), 2)),
            "got an answer of dtype int32, expected floats",
        ),
        (
            lambda: ps.ProgramBuilder(layers.monte_carlo(train_program, 2), optax.sgd(0.1)).init(),
            "moves running statistics in training",
        ),
    ],
)
def test_what_has_no_mean_is_refused(function, message):
    with pytest.raises(ValueError, match=message):
        function()

"""`remat`: the numbers of a network without it, in less memory."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import assert_close, class_data


def block(x, size=8):
    x = layers.batch_norm(layers.fc(x, size=size, bias_attr=False), act="relu")
    return layers.dropout(layers.fc(x, size=size, act="tanh"), 0.25)


def make_program(wrap):
    def program():
        label = layers.data("label", shape=[1], dtype="int32")
        x = wrap(block)(layers.data("x", shape=[4]))
        prediction = wrap(lambda x: layers.fc(block(x), size=3, act="softmax"))(x)
        loss = wrap(lambda p: layers.mean(layers.cross_entropy(p, label)))(prediction)
        return loss, layers.accuracy(prediction, label), prediction

    return program


def train(program, num_steps=3, **options):
    builder = ps.ProgramBuilder(program, optax.sgd(0.1), **options)
    state, values = builder.init(), []
    for seed in range(num_steps):
        state, returned = builder.train(state, class_data(21, seed))
        values.append(jax.device_get(returned))
    return values, jax.device_get(state.variables), builder.test(state, class_data(21, 9))


@pytest.mark.quick("float16")
@pytest.mark.parametrize(
    "options",
    [{"precision": "float16"}, {"gradient_accumulation_steps": 2, "state_sharding": "full"}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_wrapped_functions_give_the_numbers_of_plain_ones(options):
    plain = train(make_program(lambda function: function), **options)
    wrapped = train(make_program(layers.remat), **options)
    rtol = 1e-5 if "precision" not in options else 2e-3
    assert_close(wrapped, plain, rtol)
    moved = plain[1]["batch_stats"]["batch_norm_0"]["mean"]
    assert np.abs(moved).max() > 0.001


def test_mean_that_comes_out_is_known_as_one():
    builder = ps.ProgramBuilder(make_program(layers.remat), optax.sgd(0.1))
    (probe,) = builder.programs.network.train.values()
    assert probe.structure.list_doubted() == []


def test_means_over_words_keep_their_counts():
    def program(wrap):
        words = layers.data("words", shape=[1], dtype="int32", lod_level=1, buckets=[8])
        return wrap(lambda: layers.mean(layers.fc(layers.embedding(words, [16, 4]), size=1)))()

    lengths = np.random.default_rng(0).integers(1, 9, size=13)
    feed = {"words": [np.arange(n, dtype=np.int32) for n in lengths]}
    results = []
    for wrap in (lambda function: function, layers.remat):
        options = {"gradient_accumulation_steps": 3}
        builder = ps.ProgramBuilder(lambda wrap=wrap: program(wrap), optax.sgd(0.1), **options)
        state, loss = builder.train(builder.init(), feed)
        results.append((jax.device_get(loss), jax.device_get(state.variables)))
    assert_close(results[1], results[0])


@pytest.mark.slow
def test_blocks_of_a_transformer_are_wrapped_and_keep_their_numbers():
    def program(rematerialize):
        x = layers.data("x", shape=[8, 16])
        options = {"dropout_rate": 0.1, "rematerialize": rematerialize}
        return layers.mean(layers.transformer_encoder(x, 3, 2, ffn_size=32, **options) ** 2)

    feed = {"x": np.random.default_rng(0).normal(size=(8, 8, 16)).astype(np.float32)}
    losses, num_barriers = [], []
    for rematerialize in (False, True):
        function = lambda rematerialize=rematerialize: program(rematerialize)  # noqa: E731
        builder = ps.ProgramBuilder(function, optax.sgd(0.1), place=jax.devices()[:1])
        state = builder.init()
        for _ in range(2):
            state, loss = builder.train(state, feed)
        losses.append(float(loss))
        text = builder.inspect("train", batch_size=8).lowered_text
        num_barriers.append(text.count("optimization_barrier"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    # What keeps XLA from taking the first computation for the second, one for each block.
    assert num_barriers == [0, 3]


@pytest.mark.slow
def test_nested_wraps_move_statistics_and_a_loop_around_one_refuses_to():
    nested = train(make_program(lambda function: layers.remat(layers.remat(function))))
    assert_close(nested, train(make_program(lambda function: function)))

    def looped():
        x = layers.data("x", shape=[4])
        norm = layers.remat(lambda x: layers.batch_norm(x, name="norm"))
        out, _ = jax.lax.scan(lambda x, _: (norm(x), None), x, None, length=2)
        return layers.mean(out)

    with pytest.raises(ps.ProgramError, match=r"'norm/mean' got an update inside lax\.scan"):
        ps.ProgramBuilder(looped, optax.sgd(0.1))

"""Searches for sentences inside programs, with layers in their steps, and with wrong arguments."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers

END = 0


def decode_all():
    """Translate with one step and all three searches: an embedding, a GRU's cell, words."""
    source = layers.data("source", [4])

    @layers.scope("decoder")
    def step(words, hidden):
        x = layers.embedding(words, [6, 5])
        gate = layers.fc([x, hidden], 8, act="sigmoid")
        new = layers.fc([x, hidden * gate], 8, act="tanh")
        hidden = hidden + (new - hidden) * layers.fc([x, hidden], 8, act="sigmoid")
        return layers.fc(hidden, 6), hidden

    hidden = layers.fc(source, 8, act="tanh", name="encoder")
    return step, hidden


def translate():
    step, hidden = decode_all()
    first = layers.data("first", [1], "int32")
    return {
        "beam": layers.beam_decode(step, hidden, first, beam_size=3, end_id=END, max_length=7),
        "greedy": layers.greedy_decode(step, hidden, first, end_id=END, max_length=7),
        "drawn": layers.sample_decode(step, hidden, first, end_id=END, max_length=7, top_p=0.9),
    }


def train_on_sentences():
    step, hidden = decode_all()
    words = layers.data("words", [5], "int32")

    def turn(hidden, word):
        logits, hidden = step(word, hidden)
        return hidden, logits

    _, logits = jax.lax.scan(turn, hidden, words[:, :-1].T)
    losses = [
        layers.softmax_with_cross_entropy(logits[n], words[:, n + 1 : n + 2]) for n in range(4)
    ]
    return layers.mean(sum(losses))


def make_pairs(count):
    """Return sources that tell their sentences: three words from 1 to 5, and the end."""
    rng = np.random.default_rng(0)
    words = rng.integers(1, 6, [count, 1]) + np.array([[0, 1, 2]])
    words = (words - 1) % 5 + 1
    first, end = np.ones([count, 1]), np.zeros([count, 1])
    source = np.stack([np.cos(words[:, 0] * n) for n in range(1, 5)], axis=1)
    sentences = np.concatenate([first, words, end], axis=1).astype(np.int32)
    return source.astype(np.float32), sentences


@pytest.fixture(scope="module")
def translator():
    """Return what a translator has learned, of 20 examples in its batches."""
    source, words = make_pairs(20)
    builder = ps.ProgramBuilder(train_on_sentences, optax.adam(0.05), place=jax.devices()[:1])
    state = builder.init(seed=0)
    for _ in range(150):
        state, _ = builder.train(state, {"source": source, "words": words})
    return jax.tree.map(np.asarray, state.variables)


def run_translator(variables, feed, num_devices):
    builder = ps.ProgramBuilder(infer_func=translate, place=jax.devices()[:num_devices])
    state = builder.adopt({"params": variables["params"]}, builder.init())
    found = builder.infer(state, feed)
    return jax.tree.map(np.asarray, found)


@pytest.mark.slow
def test_searches_write_what_a_training_program_with_the_same_step_has_learned(translator):
    source, words = make_pairs(11)
    found = run_translator(translator, {"source": source, "first": words[:, :1]}, 1)
    assert sorted(translator["params"]["decoder"]) == [
        "embedding_0",
        "fc_0",
        "fc_1",
        "fc_2",
        "fc_3",
    ]
    np.testing.assert_array_equal(found["beam"].ids[:, 0, :4], words[:, 1:])
    np.testing.assert_array_equal(found["beam"].lengths[:, 0], 4)
    np.testing.assert_array_equal(found["greedy"], words[:, 1:])
    np.testing.assert_array_equal(found["drawn"], words[:, 1:])


def test_float_state_keeps_its_dtype_in_a_program_of_another_precision():
    source, words = make_pairs(4)
    shared = {"place": jax.devices()[:1], "precision": "bfloat16"}
    builder = ps.ProgramBuilder(infer_func=lambda: translate()["beam"], **shared)
    found = builder.infer(builder.init(), {"source": source, "first": words[:, :1]})
    assert found.scores.dtype == np.float32
    assert np.isfinite(np.asarray(found.scores)).all()

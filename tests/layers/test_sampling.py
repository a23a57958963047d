"""Sentences of drawn words: which words are left, how often they come, what draws depend on."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from penstock.layers.decoding import draw_words
from tests.layers.programs import infer, normal

END = 0


class Checked(NamedTuple):
    """Arguments of `draw_words`, and the words that may be drawn of the shares below."""

    temperature: float
    top_k: int | None
    top_p: float | None
    expected: dict[int, float]


SHARES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
DRAWS = {
    "plain": Checked(1.0, None, None, dict(enumerate(SHARES))),
    "temperature": Checked(0.5, None, None, dict(enumerate(SHARES**2 / (SHARES**2).sum()))),
    "top_k": Checked(1.0, 2, None, {1: 4 / 7, 3: 3 / 7}),
    "top_k of all": Checked(1.0, 9, None, dict(enumerate(SHARES))),
    "top_p": Checked(1.0, None, 0.75, {1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}),
    "top_p below the likeliest": Checked(1.0, None, 0.01, {1: 1.0}),
    # Of the three likeliest, 0.4 + 0.3 of 0.85 are 0.82.
    "both": Checked(1.0, 3, 0.8, {1: 4 / 7, 3: 3 / 7}),
}


COUNT = 20_000


@functools.cache
def drawn():
    """Return the words of all cases."""
    logits = jnp.asarray(np.broadcast_to(np.log(SHARES) + 3, (COUNT, 5)), jnp.float32)

    def run(keys, logits):  # which as a constant would be sorted by the compiler
        return {name: draw_words(keys, logits, *case[:3]) for name, case in DRAWS.items()}

    return jax.jit(run)(jax.random.split(jax.random.key(0), COUNT), logits)


@pytest.mark.parametrize("name", DRAWS)
def test_words_are_drawn_by_their_shares_from_those_that_are_left(name):
    words, counts = np.unique(drawn()[name], return_counts=True)
    expected = DRAWS[name].expected
    assert words.tolist() == sorted(expected)
    for word, number in zip(words, counts, strict=True):
        share = expected[word]
        # Five standard deviations.
        assert number / COUNT == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / COUNT))


def test_equally_likely_words_are_cut_to_top_k_from_the_front():
    keys = jax.random.split(jax.random.key(0), 500)
    words = jax.jit(lambda keys: draw_words(keys, jnp.zeros([500, 8]), 1.0, 3, None))(keys)
    assert np.unique(words).tolist() == [0, 1, 2]


def sampled(**options):
    def program():
        first = layers.data("first", [1], "int32")
        table = layers.create_parameter([6, 6], name="table", attr=lambda *_: normal(6, 6))

        def step(words, state):
            return table[words] + state, state

        return layers.sample_decode(
            step, layers.data("state", [6]), first, end_id=END, max_length=8, **options
        )

    return program


FEED = {"first": np.arange(24, dtype=np.int32)[:, None] % 5 + 1, "state": normal(24, 6, seed=4)}


def as_lists(sentences):
    return [np.asarray(sentence).tolist() for sentence in sentences]


def test_sampled_sentences_follow_the_seed_and_the_place_alone():
    one = as_lists(infer(sampled(), FEED))
    samples = [as_lists(infer(sampled(seed=seed), FEED)) for seed in (1, np.int64(2))]
    assert one not in samples
    assert samples[0] != samples[1]
    # The same place and another batch around it.
    part = {name: values[:7] for name, values in FEED.items()}
    assert as_lists(infer(sampled(), part)) == one[:7]
    assert {len(sentence) for sentence in one} > {1, 2}
    assert all(END not in sentence[:-1] for sentence in one)
    assert all(sentence[-1] == END or len(sentence) == 8 for sentence in one)


def test_sentences_without_an_end_have_all_words():
    def program():
        first = layers.data("first", [1], "int32")

        def step(words, state):
            return jax.nn.one_hot((words + 1) % 4, 4), state

        return (
            layers.greedy_decode(step, (), first, max_length=6),
            layers.sample_decode(step, (), first, max_length=6, top_k=1),
        )

    for sentences in infer(program, {"first": np.array([[0], [3]], np.int32)}):
        assert as_lists(sentences) == [[1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 0, 1]]


def test_seeds_that_are_fed_give_other_sentences_at_each_call():
    def program():
        return sampled(seed=layers.data("seed", [1], "int32"))()

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    state = builder.init()

    def draw(seed):
        return as_lists(builder.infer(state, {**FEED, "seed": np.full([24, 1], seed, np.int32)}))

    assert draw(1) == draw(1) != draw(2)
    assert builder.num_compiles["infer"] == 1

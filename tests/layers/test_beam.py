"""Searches for sentences: against all sentences, against plain loops, and inside programs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from tests.layers.programs import normal

END = 0


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class Language(NamedTuple):
    """A language whose next word depends on the last two, and on the example: `[B, V, V, V]`."""

    logits: np.ndarray

    @property
    def num_words(self) -> int:
        return self.logits.shape[-1]

    def step(self, words: Any, state: Any) -> Any:
        """Search a step further; the state is the word before the last, and the logits."""
        before, table, count = state
        logits = table[jnp.arange(len(words)), before, words]
        return logits, (words, table, count + 1)

    def state(self, first: Any) -> Any:
        return jnp.asarray(first), jnp.asarray(self.logits), 0

    def log_probs(self, example: int, sentence: tuple[int, ...]) -> np.ndarray:
        """Return those of the word after a sentence, which includes the first word."""
        before, last = ([sentence[0], *sentence])[-2:]
        return log_softmax(self.logits[example, before, last].astype(np.float64))


def make_language(num_examples: int, num_words: int, seed: int = 0) -> Language:
    return Language(normal(num_examples, num_words, num_words, num_words, seed=seed))


def penalty(length: int, power: float) -> float:
    return ((5 + length) / 6) ** power


def search_plainly(language, example, first, beam_size, max_length, power=0.0):
    """Return the sentences of a beam search, best first: a list sorted at each step."""
    beams = [((), 0.0)]
    for number in range(1, max_length + 1):
        candidates = []
        for words, score in beams:
            if words and words[-1] == END:
                candidates.append((score / penalty(len(words), power), words, score))
                continue
            gains = language.log_probs(example, (first, *words))
            for word, gain in enumerate(gains):
                total = score + gain
                candidates.append((total / penalty(number, power), (*words, word), total))
        candidates.sort(key=lambda candidate: -candidate[0])  # stable: lower beam, then lower word
        beams = [(words, score) for _, words, score in candidates[:beam_size]]
    return [(words, score / penalty(len(words), power)) for words, score in beams]


def check_sentences(sentences, example, expected, max_length):
    for k, (words, score) in enumerate(expected):
        assert sentences.lengths[example, k] == len(words)
        padded = [*words, *[END] * (max_length - len(words))]
        assert sentences.ids[example, k].tolist() == padded
        np.testing.assert_allclose(sentences.scores[example, k], score, rtol=1e-5)


FIRST = np.array([1, 2, 1], np.int32)


def decode(language, first=FIRST, search=layers.beam_decode, on_step=None, **options):
    """Search in a language, in one program."""

    def run(logits, first):
        own = Language(logits)

        def step(words, state):
            if on_step is not None:
                jax.debug.callback(on_step, 1)
            return own.step(words, state)

        return search(step, own.state(first.reshape(-1)), first, end_id=END, **options)

    return jax.jit(run)(language.logits, first)


@pytest.mark.quick("1-5", "3-5", "130")
@pytest.mark.parametrize(
    ("beam_size", "max_length", "power"),
    [(1, 5, 0.0), (2, 4, 0.0), (3, 5, 0.7), (5, 3, 2.0), (7, 1, 0.0), (130, 3, 1.5)],
)
def test_beam_decode_equals_a_plain_search(beam_size, max_length, power):
    language = make_language(3, 5, seed=beam_size)
    sentences = decode(language, beam_size=beam_size, max_length=max_length, length_penalty=power)
    for example, first in enumerate(FIRST):
        expected = search_plainly(language, example, first, beam_size, max_length, power)
        check_sentences(sentences, example, expected, max_length)
        # Fewer sentences than beams.
        for k in range(len(expected), beam_size):
            assert sentences.scores[example, k] == -np.inf
            assert sentences.lengths[example, k] == 0


def test_search_that_stops_at_the_best_sentence_finds_the_same_one():
    # Sentences end soon, so that the loop has steps to save.
    language = make_language(3, 4, seed=8)
    language.logits[..., END] += 2
    turns = []
    sentences, num_turns = {}, {}
    for stop in (False, True):
        turns.clear()
        options = {"beam_size": 4, "max_length": 40, "length_penalty": 0.6, "stop_at_best": stop}
        sentences[stop] = decode(language, on_step=turns.append, **options)
        jax.block_until_ready(sentences[stop])
        jax.effects_barrier()
        num_turns[stop] = len(turns)
    np.testing.assert_array_equal(sentences[True].ids[:, 0], sentences[False].ids[:, 0])
    np.testing.assert_array_equal(sentences[True].scores[:, 0], sentences[False].scores[:, 0])
    assert num_turns[True] < num_turns[False] < 40


SCORES = np.zeros([1, 2, 3], np.float32)


def test_equal_scores_prefer_the_lower_beam_and_the_lower_word():
    def step(words, state):
        return jnp.zeros([len(words), 4]), state

    sentences = layers.beam_decode(step, (), jnp.array([1]), beam_size=3, end_id=3, max_length=2)
    assert sentences.ids[0].tolist() == [[0, 0], [0, 1], [0, 2]]
    ids, _, parents = jax.jit(lambda ids: layers.beam_search(ids, 0.0 * ids, None, SCORES, 4, 9))(
        jnp.zeros([1, 2], int)
    )
    assert (ids.tolist(), parents.tolist()) == ([[0, 1, 2, 0]], [[0, 0, 0, 1]])


def test_banned_words_are_never_chosen_and_beams_without_words_are_no_sentences():
    def step(words, state):
        logits = jnp.full([len(words), 3], -jnp.inf).at[:, 2].set(1.0)
        return jnp.where((words == 2)[:, None], logits.at[:, 0].set(1.0), logits), state

    sentences = layers.beam_decode(step, (), jnp.array([1]), beam_size=3, end_id=END, max_length=3)
    assert sentences.ids[0].tolist() == [[2, 0, 0], [2, 2, 0], [2, 2, 2]]
    assert sentences.lengths.tolist() == [[2, 3, 3]]
    np.testing.assert_allclose(np.exp(sentences.scores[0]), [0.5, 0.25, 0.25], rtol=1e-6)
    short = layers.beam_decode(step, (), jnp.array([1]), beam_size=3, end_id=END, max_length=1)
    assert short.lengths.tolist() == [[1, 0, 0]]


def test_greedy_decode_equals_a_beam_of_one():
    language = make_language(3, 6, seed=3)
    greedy = decode(language, search=layers.greedy_decode, max_length=9)
    beam = decode(language, beam_size=1, max_length=9)
    np.testing.assert_array_equal(greedy.lengths, beam.lengths[:, 0])
    np.testing.assert_array_equal(greedy.values, beam.ids[:, 0])
    assert len(set(greedy.lengths.tolist())) > 1


def search_by_steps(language, first, beam_size, max_length):
    """Return what Fluid's two layers find, in a scan, with candidates from `topk`."""
    batch = len(first)

    def turn(carry, _):
        words, scores, state = carry
        logits, state = language.step(words.reshape(-1), state)
        gains, ids = layers.topk(jax.nn.log_softmax(logits), beam_size)
        shape = (batch, beam_size, beam_size)
        total = scores[..., None] + gains.reshape(shape)
        words, scores, parents = layers.beam_search(
            words, scores, ids.reshape(shape), total, beam_size, END
        )
        rows = (jnp.arange(batch)[:, None] * beam_size + parents).reshape(-1)
        before, table, count = state
        return (words, scores, (before[rows], table[rows], count)), (words, scores, parents)

    first = jnp.asarray(first)
    scores = jnp.where(jnp.arange(beam_size)[None] == 0, 0.0, -jnp.inf)
    begin = (
        layers.tile_beams(first, beam_size).reshape(batch, beam_size),
        jnp.broadcast_to(scores, (batch, beam_size)),
        layers.tile_beams(language.state(first), beam_size),
    )
    _, (ids, scores, parents) = jax.lax.scan(turn, begin, None, max_length)
    return layers.beam_search_decode(ids, scores, parents, beam_size, END)


def test_steps_of_beam_search_and_its_decoding_equal_the_whole_search():
    language = make_language(3, 5, seed=2)
    steps = jax.jit(lambda first: search_by_steps(language, first, 3, 6))(FIRST)
    whole = decode(language, beam_size=3, max_length=6)
    np.testing.assert_array_equal(steps.ids, whole.ids)
    np.testing.assert_array_equal(steps.lengths, whole.lengths)
    np.testing.assert_allclose(steps.scores, whole.scores, rtol=1e-6)


@pytest.mark.slow
def test_sequence_in_the_state_goes_with_its_beams():
    # The state counts the words of each beam, and holds a source that only the example tells.
    source = ps.Sequence(jnp.array([[[2.0], [5.0]], [[3.0], [9.0]]]), jnp.array([2, 1]))
    tiled = layers.tile_beams(source, 3)
    assert tiled.lengths.tolist() == [2, 2, 2, 1, 1, 1]

    def step(words, state):
        source, chosen = state
        weights = source.masked().sum(1)
        logits = -jnp.abs(jnp.arange(12.0)[None] - weights - chosen)
        return logits, (source, chosen + jnp.where(words == 1, 1.0, 0.0)[:, None])

    first = jnp.array([1, 1])
    state = (source, jnp.zeros([2, 1]))
    sentences = layers.beam_decode(step, state, first, beam_size=3, end_id=0, max_length=2)
    # Step 2 of every beam has counted the first word alone.
    assert sentences.ids[:, 0].tolist() == [[7, 8], [3, 4]]


def translate():
    """Translate with one step and all three searches: an embedding, a GRU's cell, words."""

    @layers.scope("decoder")
    def step(words, hidden):
        x = layers.embedding(words, [6, 5])
        gate = layers.fc([x, hidden], 8, act="sigmoid")
        new = layers.fc([x, hidden * gate], 8, act="tanh")
        hidden = hidden + (new - hidden) * layers.fc([x, hidden], 8, act="sigmoid")
        return layers.fc(hidden, 6), hidden

    hidden = layers.fc(layers.data("source", [4]), 8, act="tanh")
    first = layers.data("first", [1], "int32")
    return {
        "beam": layers.beam_decode(step, hidden, first, beam_size=3, end_id=END, max_length=7),
        "greedy": layers.greedy_decode(step, hidden, first, end_id=END, max_length=7),
        "drawn": layers.sample_decode(step, hidden, first, end_id=END, max_length=7, top_k=1),
    }


def test_searches_share_a_step_and_its_state_keeps_its_dtype_in_a_program_of_another_precision():
    builder = ps.ProgramBuilder(infer_func=translate, place=jax.devices()[:1], precision="bfloat16")
    state = builder.init()
    names = ["embedding_0", *(f"fc_{number}" for number in range(4))]
    assert sorted(state.variables["params"]["decoder"]) == names
    feed = {"source": normal(4, 4), "first": np.ones([4, 1], np.int32)}
    results = builder.infer(state, feed)
    assert results["beam"].scores.dtype == np.float32
    assert np.isfinite(np.asarray(results["beam"].scores)).all()
    # The one word that is left is the likeliest.
    for drawn, likeliest in zip(results["drawn"], results["greedy"], strict=True):
        np.testing.assert_array_equal(drawn, likeliest)

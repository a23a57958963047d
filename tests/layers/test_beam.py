"""Searches for sentences: against all sentences, against plain loops, and inside programs."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import LayerContextError, ProgramError
from penstock.layers.sampling import draw_words
from tests.layers.programs import infer, normal

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
        """The step of a search; the state is the word before the last, and the example's logits."""
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


def list_sentences(language, example, first, max_length):
    """Return every sentence with its log probability, longest possible or ended."""
    found = []
    for length in range(1, max_length + 1):
        for words in itertools.product(range(language.num_words), repeat=length):
            is_whole = END not in words[:-1] and (words[-1] == END or length == max_length)
            if not is_whole:
                continue
            whole = (first, *words)
            score = sum(
                language.log_probs(example, whole[: n + 1])[word] for n, word in enumerate(words)
            )
            found.append((words, score))
    return found


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
        candidates.sort(key=lambda each: -each[0])  # stable: lower beam, then lower word
        beams = [(words, score) for _, words, score in candidates[:beam_size]]
    return [(words, score / penalty(len(words), power)) for words, score in beams]


def check_sentences(found, example, expected, max_length):
    for k, (words, score) in enumerate(expected):
        assert found.lengths[example, k] == len(words)
        padded = [*words, *[END] * (max_length - len(words))]
        assert found.ids[example, k].tolist() == padded
        np.testing.assert_allclose(found.scores[example, k], score, rtol=1e-5)


FIRST = np.array([1, 2, 1], np.int32)


@pytest.mark.parametrize(
    ("beam_size", "max_length", "power"),
    [(1, 5, 0.0), (2, 4, 0.0), (3, 5, 0.7), (5, 3, 2.0), (7, 1, 0.0)],
)
def test_beam_decode_equals_a_plain_search(beam_size, max_length, power):
    language = make_language(3, 5, seed=beam_size)
    found = layers.beam_decode(
        language.step,
        language.state(FIRST),
        FIRST,
        beam_size=beam_size,
        end_id=END,
        max_length=max_length,
        length_penalty=power,
    )
    for example, first in enumerate(FIRST):
        expected = search_plainly(language, example, first, beam_size, max_length, power)
        check_sentences(found, example, expected, max_length)
        # Fewer sentences than beams.
        for k in range(len(expected), beam_size):
            assert found.scores[example, k] == -np.inf and found.lengths[example, k] == 0


@pytest.mark.parametrize("power", [0.0, 1.5])
def test_beam_as_wide_as_the_language_finds_all_sentences_best_first(power):
    language, max_length = make_language(3, 3, seed=1), 3
    found = layers.beam_decode(
        language.step,
        language.state(FIRST),
        FIRST[:, None],
        beam_size=3**max_length,
        end_id=END,
        max_length=max_length,
        length_penalty=power,
    )
    for example, first in enumerate(FIRST):
        every = list_sentences(language, example, first, max_length)
        scored = [(words, score / penalty(len(words), power)) for words, score in every]
        scored.sort(key=lambda each: -each[1])
        check_sentences(found, example, scored, max_length)
        assert np.isneginf(found.scores[example, len(scored) :]).all()
        if not power:
            np.testing.assert_allclose(np.exp(found.scores[example]).sum(), 1, rtol=1e-5)


def test_search_that_stops_at_the_best_sentence_finds_the_same_one():
    # Sentences end soon, so that the loop has steps to save.
    language = make_language(3, 4, seed=5)
    language.logits[..., END] += 1
    turns = []

    def count(words, state):
        jax.debug.callback(turns.append, 1)
        return language.step(words, state)

    found, num_turns = {}, {}
    for stop in (False, True):
        turns.clear()
        found[stop] = layers.beam_decode(
            count,
            language.state(FIRST),
            FIRST,
            beam_size=4,
            end_id=END,
            max_length=40,
            length_penalty=0.6,
            stop_at_best=stop,
        )
        jax.block_until_ready(found[stop])
        jax.effects_barrier()
        num_turns[stop] = len(turns)
    np.testing.assert_array_equal(found[True].ids[:, 0], found[False].ids[:, 0])
    np.testing.assert_array_equal(found[True].scores[:, 0], found[False].scores[:, 0])
    assert num_turns[True] < num_turns[False] < 40


def test_examples_that_are_done_stay_as_they_are_while_others_go_on():
    language = make_language(3, 4, seed=5)
    language.logits[0, ..., END] += 3

    def search(rows):
        alone = Language(language.logits[rows])
        return layers.beam_decode(
            alone.step,
            alone.state(FIRST[rows]),
            FIRST[rows],
            beam_size=3,
            end_id=END,
            max_length=12,
            stop_at_best=True,
        )

    together = search(slice(0, 3))
    for row in range(3):
        for whole, own in zip(together, search(slice(row, row + 1)), strict=True):
            np.testing.assert_allclose(whole[row : row + 1], own, rtol=1e-6)


def test_equal_scores_prefer_the_lower_beam_and_the_lower_word():
    def step(words, state):
        return jnp.zeros([len(words), 4]), state

    found = layers.beam_decode(step, (), jnp.array([1]), beam_size=3, end_id=3, max_length=2)
    assert found.ids[0].tolist() == [[0, 0], [0, 1], [0, 2]]
    ids, _, parents = layers.beam_search(
        jnp.zeros([1, 2], int), jnp.zeros([1, 2]), None, jnp.zeros([1, 2, 3]), 4, 9
    )
    assert (ids.tolist(), parents.tolist()) == ([[0, 1, 2, 0]], [[0, 0, 0, 1]])


def test_banned_words_are_never_chosen_and_beams_without_words_are_no_sentences():
    def step(words, state):
        logits = jnp.full([len(words), 3], -jnp.inf).at[:, 2].set(1.0)
        return jnp.where((words == 2)[:, None], logits.at[:, 0].set(1.0), logits), state

    found = layers.beam_decode(step, (), jnp.array([1]), beam_size=3, end_id=END, max_length=3)
    assert found.ids[0].tolist() == [[2, 0, 0], [2, 2, 0], [2, 2, 2]]
    assert found.lengths.tolist() == [[2, 3, 3]]
    np.testing.assert_allclose(np.exp(found.scores[0]), [0.5, 0.25, 0.25], rtol=1e-6)
    short = layers.beam_decode(step, (), jnp.array([1]), beam_size=3, end_id=END, max_length=1)
    assert short.lengths.tolist() == [[1, 0, 0]]


def test_greedy_decode_equals_a_beam_of_one():
    language = make_language(3, 6, seed=3)
    state = language.state(FIRST)
    greedy = layers.greedy_decode(language.step, state, FIRST, end_id=END, max_length=9)
    beam = layers.beam_decode(language.step, state, FIRST, beam_size=1, end_id=END, max_length=9)
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
    steps = search_by_steps(language, FIRST, 3, 6)
    whole = layers.beam_decode(
        language.step, language.state(FIRST), FIRST, beam_size=3, end_id=END, max_length=6
    )
    np.testing.assert_array_equal(steps.ids, whole.ids)
    np.testing.assert_array_equal(steps.lengths, whole.lengths)
    np.testing.assert_allclose(steps.scores, whole.scores, rtol=1e-6)


def test_beam_that_has_ended_keeps_its_word_and_score():
    scores = jnp.full([1, 2, 3], 0.0)
    ids, found, parents = layers.beam_search(
        jnp.array([[4, 7]]),
        jnp.array([[-5.0, -1.0]]),
        jnp.arange(6).reshape(1, 2, 3),
        scores.at[0, 0].set(jnp.array([-6.0, -7.0, -8.0])),
        beam_size=3,
        end_id=7,
    )
    assert (ids.tolist(), parents.tolist()) == ([[7, 0, 1]], [[1, 0, 0]])
    assert found.tolist() == [[-1.0, -6.0, -7.0]]


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


@pytest.mark.parametrize("case", DRAWS.values(), ids=DRAWS)
def test_words_are_drawn_by_their_shares_from_those_that_are_left(case):
    count = 20_000
    logits = np.broadcast_to(np.log(SHARES).astype(np.float32) + 3, (count, 5))
    keys = jax.random.split(jax.random.key(0), count)
    words = draw_words(keys, jnp.asarray(logits), case.temperature, case.top_k, case.top_p)
    found, counts = np.unique(words, return_counts=True)
    assert found.tolist() == sorted(case.expected)
    for word, number in zip(found, counts, strict=True):
        share = case.expected[word]
        # Five standard deviations.
        assert number / count == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / count))


def test_equally_likely_words_are_cut_to_top_k_from_the_front():
    keys = jax.random.split(jax.random.key(0), 500)
    words = draw_words(keys, jnp.zeros([500, 8]), 1.0, 3, None)
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
    return [np.asarray(each).tolist() for each in sentences]


def test_sampled_sentences_follow_the_seed_and_the_place_alone():
    one = as_lists(infer(sampled(), FEED))
    assert one == as_lists(infer(sampled(), FEED))
    others = [as_lists(infer(sampled(seed=seed), FEED)) for seed in (1, 2)]
    assert one not in others and others[0] != others[1]
    assert others[0] == as_lists(infer(sampled(seed=1), FEED))
    # The same place and another batch around it.
    part = {name: values[:7] for name, values in FEED.items()}
    assert as_lists(infer(sampled(), part)) == one[:7]
    assert {len(each) for each in one} > {1, 2} and all(END not in each[:-1] for each in one)
    assert all(each[-1] == END or len(each) == 8 for each in one)


def test_seeds_that_are_fed_give_other_sentences_at_each_call():
    def program():
        return sampled(seed=layers.data("seed", [1], "int32"))()

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    state = builder.init()

    def draw(seed):
        return as_lists(builder.infer(state, {**FEED, "seed": np.full([24, 1], seed, np.int32)}))

    assert draw(1) == draw(1) != draw(2)
    assert builder.num_compiles["infer"] == 1


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


def test_searches_are_the_same_on_one_and_several_devices_in_a_short_batch():
    source, words = make_pairs(13)
    feed = {"source": source, "first": words[:, :1]}
    # Untrained: sentences of all lengths, and draws that differ.
    builder = ps.ProgramBuilder(infer_func=translate, place=jax.devices()[:1])
    variables = jax.tree.map(np.asarray, builder.init(seed=3).variables)
    one, three, eight = [run_translator(variables, feed, count) for count in (1, 3, 8)]
    assert len({len(each) for each in one["drawn"]}) > 2
    for other in (three, eight):
        np.testing.assert_array_equal(one["beam"].ids, other["beam"].ids)
        np.testing.assert_array_equal(one["beam"].lengths, other["beam"].lengths)
        np.testing.assert_allclose(one["beam"].scores, other["beam"].scores, rtol=1e-5)
        for name in ("greedy", "drawn"):
            assert as_lists(one[name]) == as_lists(other[name])


def step_of(logits, state=None):
    return lambda words, before: (logits(words), before if state is None else state)


def fine(words):
    return jnp.zeros([len(words), 3])


ONES = jnp.ones([2], jnp.int32)
WRONG = {
    "words": (step_of(fine), (), ONES.astype(jnp.float32), {}, r"got first_ids of dtype float32"),
    "rank": (step_of(fine), (), jnp.ones([2, 3], jnp.int32), {}, r"shape \(2, 3\), expected \[B\]"),
    "state": (step_of(fine), jnp.ones([3, 1]), ONES, {}, r"array of shape \(3, 1\), expected 2"),
    "end": (step_of(fine), (), ONES, {"end_id": 3}, r"end_id=3 and logits of 3 words"),
    "logits": (
        step_of(lambda words: jnp.zeros([len(words), 1, 3])),
        (),
        ONES,
        {},
        r"logits of shape \(4, 1, 3\) from step, expected \[4, V\]",
    ),
    "tuple": (lambda words, state: fine(words), (), ONES, {}, r"from step, expected a tuple"),
    "structure": (step_of(fine, (1,)), (), ONES, {}, r"state of structure .* expected"),
    "shape": (
        step_of(fine, jnp.ones([4, 2])),
        jnp.ones([2, 1]),
        ONES,
        {},
        r"shape \(4, 2\) and dtype float32 in the state .* expected shape \(4, 1\)",
    ),
    "dtype": (step_of(fine, jnp.ones([4], int)), jnp.ones([2]), ONES, {}, r"dtype int32 in the st"),
    "beams": (step_of(fine), (), ONES, {"beam_size": 0}, r"beam_size got 0, expected an integer"),
    "length": (step_of(fine), (), ONES, {"max_length": 0}, r"max_length got 0, expected an int"),
    "penalty": (step_of(fine), (), ONES, {"length_penalty": -1.0}, r"length_penalty=-1.0, expect"),
}


@pytest.mark.parametrize(("step", "state", "first", "options", "text"), WRONG.values(), ids=WRONG)
def test_search_with_wrong_arguments_says_what_is_wrong(step, state, first, options, text):
    options = {"beam_size": 2, "end_id": 0, "max_length": 3, **options}
    with pytest.raises(ValueError, match=text):
        layers.beam_decode(step, state, first, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0.0}, r"temperature=0.0, expected a number above 0.*greedy_decode"),
        ({"top_k": 0}, r"top_k got 0, expected an integer of 1 or more"),
        ({"top_p": 1.5}, r"top_p=1.5, expected a number above 0 and up to 1"),
        ({"seed": jnp.zeros([3], int)}, r"seed of shape \(3,\), expected a number, or \[B\]"),
    ],
)
def test_sampling_with_wrong_options_says_what_is_wrong(options, text):
    with pytest.raises(ValueError, match=text):
        ps.ProgramBuilder(infer_func=sampled(**options))


def test_sampling_outside_a_program_says_so():
    with pytest.raises(LayerContextError, match="layers.sample_decode got called outside"):
        layers.sample_decode(step_of(fine), (), ONES, end_id=0, max_length=2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: layers.beam_search(
                ONES[None], ONES[None] * 1.0, None, jnp.ones([1, 3, 2]), 2, 0
            ),
            r"of shapes .*, expected \[B, J\], \[B, J\], \[B, J, C\]",
        ),
        (
            lambda: layers.beam_search(
                ONES[None], ONES[None] * 1.0, None, jnp.ones([1, 2, 2]), 5, 0
            ),
            r"beam_size=5 and 2 beams of 2 candidates",
        ),
        (
            lambda: layers.beam_search(
                ONES[None], ONES[None] * 1.0, None, jnp.ones([1, 2, 2]), 2, 0, level=1
            ),
            r"level=1, expected 0",
        ),
        (
            lambda: layers.beam_search_decode(
                jnp.ones([3, 1, 2], int), jnp.ones([3, 1, 2]), jnp.ones([2, 1, 2], int), 2, 0
            ),
            r"beam_size=2, expected three of shape \[S, B, 2\]",
        ),
        (lambda: layers.tile_beams(ONES, 0), r"beam_size got 0"),
    ],
)
def test_step_with_wrong_arguments_says_what_is_wrong(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_float_state_keeps_its_dtype_in_a_program_of_another_precision():
    source, words = make_pairs(4)
    builder = ps.ProgramBuilder(infer_func=translate, place=jax.devices()[:1], precision="bfloat16")
    found = builder.infer(builder.init(), {"source": source, "first": words[:, :1]})
    assert found["beam"].scores.dtype == np.float32
    assert np.isfinite(np.asarray(found["beam"].scores)).all()


def test_ids_that_are_no_integers_are_refused():
    with pytest.raises(ProgramError, match=r"layers.beam_search got pre_ids of dtype float32"):
        layers.beam_search(jnp.ones([1, 1]), jnp.ones([1, 1]), None, jnp.ones([1, 1, 2]), 2, 0)

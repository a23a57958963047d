"""Programs of sequences compute what programs of their words do, end to end and without padding.

On any number of devices, in micro-batches, in launches of several steps.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from penstock._metrics import StepValues, arrange
from penstock.program_builder.engine import Engine
from tests.networks import assert_same_bits, host

NUM_WORDS, NUM_TAGS = 11, 3


def devices(number):
    return jax.devices()[:number]


def make_batch(num_examples, longest, seed):
    """Return words and tags of random lengths, of which the first is 0 and the second the most."""
    random = np.random.default_rng(seed)
    lengths = [0, longest, *random.integers(1, longest + 1, num_examples)][:num_examples]
    draw = lambda high, n: random.integers(0, high, n).astype(np.int32)  # noqa: E731
    return {
        "words": [draw(NUM_WORDS, n) for n in lengths],
        "tags": [draw(NUM_TAGS, n) for n in lengths],
    }


# Ragged, of two buckets, the last with fewer examples than devices.
BUCKETS = [10, 20, 40]
BATCHES = [make_batch(7, 20, 0), make_batch(7, 3, 2), make_batch(2, 10, 3)]


def join(batch):
    """Return the words of a batch end to end, as a batch of words."""
    return {name: np.concatenate(column)[:, None] for name, column in batch.items()}


def tag(lod_level, *, has_batch_norm=True):
    """Return loss, accuracy and another mean of a tagger of sequences, or of single words."""
    buckets = BUCKETS if lod_level else ()
    words = layers.data("words", [1], "int32", lod_level=lod_level, buckets=buckets)
    tags = layers.data("tags", [1], "int32", lod_level=lod_level, buckets=buckets)
    hidden = layers.fc(layers.embedding(words, [NUM_WORDS, 4]), 5, act="tanh")
    if has_batch_norm:
        hidden = layers.batch_norm(hidden)
    scores = layers.fc(hidden, NUM_TAGS, act="softmax")
    loss = layers.mean(layers.cross_entropy(scores, tags))
    return {"loss": loss, "accuracy": layers.accuracy(scores, tags), "mean": layers.mean(hidden)}


def make_builder(program, num_devices=1, optimizer=None, **options):
    optimizer = optax.sgd(0.5) if optimizer is None else optimizer
    return ps.ProgramBuilder(program, optimizer, place=devices(num_devices), **options)


def train(builder, batches, is_launched=False):
    """Return the metrics of each batch, their means over all, and the variables after them.

    Arguments:
      is_launched: whether batches of one size that follow each other are one launch.
    """
    engine = Engine(builder.programs, builder.init(), tuple(builder.objectives))
    metrics = []
    size_of = lambda batch: len(batch["tags"]) if is_launched else id(batch)  # noqa: E731
    for _, batch in itertools.groupby(batches, size_of):
        placed = builder.programs.place("train", batch := [*batch])
        launched = engine.run(placed)
        structures = builder.programs.structures
        show = functools.partial(arrange, structures, placed.size)
        values = StepValues(launched.values, len(batch), len(structures) == 1, show)
        metrics += [values.at(number) for number in range(len(batch))]
    return metrics, builder.mean_metrics(engine.state), host(engine.state.variables)


def assert_near(actual, expected, atol=1e-6):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=atol, rtol=1e-6)


@functools.cache
def train_by_words(has_batch_norm=True):
    """Train on the words of each batch, end to end, as examples."""
    program = functools.partial(tag, 0, has_batch_norm=has_batch_norm)
    return train(make_builder(program), [join(batch) for batch in BATCHES])


@pytest.mark.slow
@pytest.mark.parametrize(("num_devices", "is_launched"), [(1, True), (3, True), (8, False)])
def test_tagger_trains_as_on_its_words_end_to_end(num_devices, is_launched):
    builder = make_builder(lambda: tag(1), num_devices)
    assert_near(train(builder, BATCHES, is_launched), train_by_words())


@pytest.mark.quick("3-2")
@pytest.mark.parametrize(("num_devices", "number"), [(1, 3), (3, 2)])
def test_micro_batches_weigh_words_and_not_examples(num_devices, number):
    program = lambda: tag(1, has_batch_norm=False)  # noqa: E731
    builder = make_builder(program, num_devices, gradient_accumulation_steps=number)
    assert_near(train(builder, BATCHES), train_by_words(has_batch_norm=False))


@pytest.mark.quick("words-3")
@pytest.mark.parametrize(
    ("program", "num_devices"), [("words", 3), ("batch norm", 8), ("micro-batches", 1)]
)
def test_batch_without_a_word_moves_nothing_and_counts_nothing(program, num_devices):
    options = {"gradient_accumulation_steps": 2} if program == "micro-batches" else {}
    has_batch_norm = program == "batch norm"
    builder = make_builder(
        lambda: tag(1, has_batch_norm=has_batch_norm), num_devices, optax.sgd(0.5), **options
    )
    empty = {"words": [[], [], []], "tags": [[], [], []]}
    initial = host(builder.init().variables)
    [metrics], means, variables = train(builder, [empty])
    assert metrics == means == {"loss": 0, "accuracy": 0, "mean": 0}
    assert_same_bits(variables, initial)
    words = BATCHES[-1]
    assert_near(train(builder, [empty, words, empty])[1:], train(builder, [words])[1:])


@pytest.mark.quick("float32")
@pytest.mark.parametrize(("precision", "num_devices"), [("float32", 3), ("bfloat16", 1)])
def test_mean_over_words_of_a_test_is_exact_whatever_the_batch_size(precision, num_devices):
    whole = make_batch(23, 10, seed=4)
    rows = list(zip(whole["words"], whole["tags"], strict=True))
    program = lambda: tag(1)  # noqa: E731
    trainer = ps.Trainer(program, optax.sgd(0.5), place=devices(num_devices), precision=precision)
    results = [
        trainer.test(ps.readers.batch(lambda: iter(rows), size), feed_order=["words", "tags"])
        for size in (3, 7, 64)
    ]
    for result in results[1:]:
        assert_near(result, results[0])
    if precision == "float32":
        words = make_builder(lambda: tag(0))
        assert_near(results[0], host(words.test(words.init(), join(whole))))


def pool_frames():
    """Return a loss over words, and for each example a pooled vector and its words' scores."""
    frames = layers.data("frames", [3], lod_level=1, buckets=BUCKETS)
    labels = layers.data("labels", [1], "int32", lod_level=1, buckets=BUCKETS)
    hidden = layers.fc(frames, 4, act="tanh")
    scores = layers.fc([hidden, layers.embedding(labels, [5, 2])], 3, act="softmax")
    return layers.mean(scores * scores), layers.sequence_pool(scores, "average"), scores


GARBAGE = {"nan": (np.nan, 4), "inf": (-np.inf, 2**31 - 1), "1e30": (1e30, -7), "1e38": (3e38, 5)}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_behind_the_words_of_a_fed_sequence_changes_nothing(name):
    random = np.random.default_rng(5)
    lengths = np.array([10, 3, 0, 1])
    is_word = np.arange(10) < lengths[:, None]
    frames = random.normal(size=(4, 10, 3)).astype(np.float32)
    labels = random.integers(0, 5, (4, 10)).astype(np.int32)
    of_frames, of_labels = GARBAGE[name]
    builder = garbage_builder()

    def run(frames, labels):
        feed = {"frames": ps.Sequence(frames, lengths), "labels": ps.Sequence(labels, lengths)}
        state, values = builder.train(builder.init(), feed)
        return host((values, state.variables)), builder.infer(state, feed)

    spoiled = np.where(is_word[..., None], frames, np.float32(of_frames))
    expected = run(frames * is_word[..., None], labels * is_word)
    assert_same_bits(run(spoiled, np.where(is_word, labels, np.int32(of_labels))), expected)


@functools.cache
def garbage_builder():
    return make_builder(lambda: pool_frames()[:2], infer_func=lambda: list(pool_frames()[1:]))


@pytest.mark.quick("3")
@pytest.mark.parametrize("num_devices", [1, 3])
def test_each_example_of_a_batch_is_what_it_is_alone(num_devices):
    random = np.random.default_rng(6)
    lengths = [4, 0, 10, 1, 20]
    frames = [random.normal(size=(n, 3)).astype(np.float32) for n in lengths]
    labels = [random.integers(0, 5, n) for n in lengths]
    builder = make_builder(
        lambda: pool_frames()[:2], num_devices, infer_func=lambda: list(pool_frames()[1:])
    )
    state = builder.init()
    pooled, scores = builder.infer(state, {"frames": frames, "labels": labels})
    assert [array.shape for array in scores] == [(n, 3) for n in lengths]
    for number in range(len(lengths)):
        feed = {"frames": [frames[number]], "labels": [labels[number]]}
        alone, its_scores = builder.infer(state, feed)
        assert_near((pooled[number], scores[number]), (alone[0], its_scores[0]))


def frames_in(length=20):
    return {"frames": [np.ones([n, 3], np.float32) for n in (2, length)]}


def score():
    frames = layers.data("frames", [3], lod_level=1, buckets=[13, 20])
    return frames, layers.mean(layers.fc(frames, 1))


PADDED_VALUES = {
    "values": (lambda x: x.values, "[2, 20, 3], and of [2, 13, 3]"),
    "rows": (lambda x: x.values.reshape(-1, 3), "[40, 3], and of [26, 3]"),
    "steps": (lambda x: x.masked().sum((0, 2)), "[20], and of [13]"),
}


@pytest.mark.parametrize(("what", "num_devices"), [("values", 1), ("rows", 1), ("steps", 2)])
def test_value_that_is_as_long_as_the_padding_is_refused(what, num_devices):
    reduce, shapes = PADDED_VALUES[what]

    def program():
        frames, loss = score()
        return {"loss": loss, what: reduce(frames)}

    builder = make_builder(program, num_devices)
    for run, mode in ((builder.train, "train"), (builder.test, "test")):
        with pytest.raises(ProgramError) as caught:
            run(builder.init(), frames_in())
        assert str(caught.value) == (
            f"the {mode} program of program has returned value {what!r} of shape {shapes} where "
            "sequences are padded to 13, expected one shape whatever their lengths. Padding would "
            "count. Return layers.mean or layers.sequence_pool of the sequence."
        )


def test_infer_program_may_return_padded_values_and_no_rows_of_them():
    builder = ps.ProgramBuilder(infer_func=lambda: score()[0].values * 2, place=devices(1))
    assert builder.infer(builder.init(), frames_in()).shape == (2, 20, 3)
    rows = ps.ProgramBuilder(infer_func=lambda: score()[0].values.reshape(-1, 3), place=devices(1))
    with pytest.raises(ProgramError, match=r"of shape \[40, 3\], and of \[26, 3\] .* itself\."):
        rows.infer(rows.init(), frames_in())


def test_parameter_that_is_as_long_as_the_padding_is_refused():
    def program():
        return layers.mean(layers.fc(score()[0].values, 2))

    builder = make_builder(program)
    with pytest.raises(ProgramError) as caught:
        builder.train(builder.init(), frames_in())
    assert str(caught.value) == (
        "the train program asks for the parameter 'fc_1/w' in shape (60, 2), expected (39, 2), as "
        "when it was first traced. A parameter has one shape, whatever the lengths and the size of "
        "a batch. Sequences were padded to 13 then. Give layers the sequence itself, or pool it "
        "first: layers.sequence_pool."
    )


@pytest.mark.parametrize("use", [list, lambda x: layers.fc(x, 2), jnp.sum])
def test_layer_given_a_sequence_of_sequences_says_that_it_takes_the_inner_ones(use):
    text = r"got (iterated over|used as an array), expected its inner sequences, nested\.inner: "
    with pytest.raises(TypeError, match=f"a NestedSequence {text}layers work on one level"):
        make_builder(lambda: use(layers.data("w", [3], lod_level=2))).init()


def test_train_program_may_not_return_a_sequence():
    with pytest.raises(ProgramError, match=r"returned a sequence, expected arrays, which are aver"):
        make_builder(lambda: score()[::-1]).init()

"""Layers that know nothing of sequences, over the words of sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from penstock._program.frame import over_words
from tests.networks import one_device

LENGTHS = (3, 1, 5, 0, 2)
RANDOM = np.random.default_rng(0)
FEED = {
    "x": [RANDOM.normal(size=(n, 4)).astype("f") for n in LENGTHS],
    "tag": [RANDOM.integers(0, 4, n) for n in LENGTHS],
    "example": RANDOM.normal(size=(len(LENGTHS), 4)).astype("f"),
}


def inputs():
    words = layers.data("x", [4], lod_level=1)
    tags = layers.data("tag", [1], "int32", lod_level=1)
    return words, tags, layers.data("example", [4])


# A layer of words, its rows in an array being the words: `(words, tags, example) -> result`.
CALLS = {
    "batch_norm": lambda x, t, e: layers.batch_norm(x),
    "concat": lambda x, t, e: layers.concat([x, x], axis=1),
    "cos_sim": lambda x, t, e: layers.cos_sim(x, e),
    "cross_entropy": lambda x, t, e: layers.cross_entropy(layers.softmax(x), t),
    "dropout": lambda x, t, e: layers.dropout(x, 0.5),
    "embedding": lambda x, t, e: layers.embedding(t, [9, 3]),
    "fc": lambda x, t, e: layers.fc(x, 3, act="softmax"),
    "fc-of-several": lambda x, t, e: layers.fc([x, e], 3),
    "gelu": lambda x, t, e: layers.gelu(x),
    "huber_loss": lambda x, t, e: layers.huber_loss(x, 2 * x, 1.0),
    "l2_normalize": lambda x, t, e: layers.l2_normalize(x, 1),
    "layer_norm": lambda x, t, e: layers.layer_norm(x),
    "log_softmax": lambda x, t, e: layers.log_softmax(x),
    "one_hot": lambda x, t, e: layers.one_hot(t, 4),
    "sigmoid_cross_entropy_with_logits": lambda x, t, e: layers.sigmoid_cross_entropy_with_logits(
        x, layers.sigmoid(x)
    ),
    "softmax_with_cross_entropy": lambda x, t, e: layers.softmax_with_cross_entropy(x, t),
    "square_error_cost": lambda x, t, e: layers.square_error_cost(x, -x),
    "sum": lambda x, t, e: 1 - x * e / 2 + x,
    "topk": lambda x, t, e: layers.topk(x, 2)[0],
}


def test_every_word_is_a_row():
    def call_all(*arguments):
        return {name: call(*arguments) for name, call in CALLS.items()}

    rows = {
        "x": np.concatenate(FEED["x"]),
        "tag": np.concatenate(FEED["tag"]),
        "example": np.repeat(FEED["example"], LENGTHS, axis=0),
    }
    shapes = {"x": [4], "tag": [1], "example": [4]}
    of_rows = ps.ProgramBuilder(
        infer_func=lambda: call_all(
            *(layers.data(n, s, "int32" if n == "tag" else "float32") for n, s in shapes.items())
        ),
        place=one_device(),
    )
    of_words = ps.ProgramBuilder(infer_func=lambda: call_all(*inputs()), place=one_device())
    state = of_words.init()
    expected = of_rows.infer(state, rows)
    for name, sequences in of_words.infer(state, FEED).items():
        assert [len(words) for words in sequences] == list(LENGTHS)
        joined = np.concatenate(sequences)
        np.testing.assert_allclose(joined, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_words_of_sequences_of_other_lengths_are_nan():
    def program():
        words, targets = (layers.data(name, [4], lod_level=1) for name in ("x", "z"))
        return layers.square_error_cost(words, targets)

    builder = ps.ProgramBuilder(infer_func=program, place=one_device())
    other = [*FEED["x"][:2], FEED["x"][2][:4], *FEED["x"][3:]]
    costs = builder.infer(builder.init(), {"x": FEED["x"], "z": other})
    assert [np.isnan(cost).any() for cost in costs] == [False, False, True, False, False]


@pytest.mark.parametrize(
    "call",
    [jnp.tanh, lambda x: layers.conv2d(x, 2, 3), lambda x: x @ jnp.ones([4, 2]), layers.flatten],
)
def test_sequence_is_no_array(call):
    with pytest.raises(TypeError, match="a Sequence got used as an array, expected a layer of"):
        ps.ProgramBuilder(infer_func=lambda: call(inputs()[0]), place=one_device())


def test_sequence_is_not_iterated_over():
    with pytest.raises(TypeError, match="a Sequence got iterated over, expected a layer of"):
        list(ps.Sequence(jnp.ones([1, 2]), jnp.ones(1, int)))


def test_array_as_long_as_the_batch_is_no_row_for_each_example():
    table = RANDOM.normal(size=(8, 4)).astype("f")  # infer pads 5 examples to 8

    def program():
        words, _, example = inputs()
        constant = layers.create_parameter([8, 4], name="table", attr=lambda *_: jnp.asarray(table))
        # A row of the table for each word, however many examples there are.
        chosen = over_words(lambda x, t: x + t[1:2], words, constant)
        return chosen, layers.mean(example), layers.cos_sim(words, example)

    builder = ps.ProgramBuilder(infer_func=program, place=one_device())
    chosen, mean, angles = builder.infer(builder.init(), {k: FEED[k] for k in builder.feed_specs})
    for rows, x in zip(chosen, FEED["x"], strict=True):
        np.testing.assert_allclose(rows, x + table[1:2], rtol=1e-6)
    assert mean == pytest.approx(FEED["example"].mean(), rel=1e-5)
    assert [len(sequence) for sequence in angles] == list(LENGTHS)


def test_powers_are_taken_word_by_word():
    words = ps.Sequence(jnp.array([[1.0, -2.0, -2.0], [3.0, 0.0, 0.0]]), jnp.array([2, 1]))
    assert [sequence.tolist() for sequence in (words**2).cut()] == [[1, 4], [9]]
    assert [sequence.tolist() for sequence in (2**words).cut()] == [[2, 0.25], [8]]
    gradient = jax.grad(lambda x: jnp.sum((words.with_values(x) ** 2).masked()))(words.values)
    assert gradient.tolist() == [[2, -4, 0], [6, 0, 0]]

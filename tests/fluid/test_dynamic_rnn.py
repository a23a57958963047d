"""A step of one's own: as a function, as a block of `DynamicRNN`, as a block of `StaticRNN`."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from tests.layers.programs import infer


def pad(*words, garbage=7.0):
    """Return one batch of examples, with garbage in the padding."""
    first = np.asarray(words[0])
    longest = max(len(array) for array in words)
    values = np.full((len(words), longest, *first.shape[1:]), garbage, np.float32)
    for row, example in enumerate(words):
        values[row, : len(example)] = example
    return ps.Sequence(jnp.asarray(values), jnp.array([len(array) for array in words], jnp.int32))


def cut(sequence):
    return [example.tolist() for example in sequence.cut()]


def test_memories_hold_after_the_last_word():
    words = pad([1.0, 2.0, 3.0], [5.0], [])
    last, outputs = layers.dynamic_rnn(
        lambda old, word: ({"sum": old["sum"] + word, "count": old["count"] + 1}, word * 2),
        {"sum": jnp.full([3], 10.0), "count": jnp.zeros([3], "int32")},
        words,
    )
    assert (last["sum"].tolist(), last["count"].tolist()) == ([16.0, 15.0, 10.0], [3, 1, 0])
    assert cut(outputs) == [[2.0, 4.0, 6.0], [10.0], []]


def test_step_reads_backwards_from_each_last_word():
    words = pad([1.0, 2.0, 3.0], [5.0, 6.0], [])
    last, outputs = layers.dynamic_rnn(
        lambda old, word: (10 * old + word, 10 * old + word), jnp.zeros([3]), words, is_reverse=True
    )
    assert last.tolist() == [321.0, 65.0, 0.0]
    assert cut(outputs) == [[321.0, 32.0, 3.0], [65.0, 6.0], []]


def test_step_takes_several_sequences_and_gives_several():
    a, b = pad([1.0, 2.0], [3.0]), pad([10.0, 20.0], [30.0])
    _, (sums, differences) = layers.dynamic_rnn(
        lambda old, words: (old, (words["a"] + words["b"], words["b"] - words["a"])),
        jnp.zeros([2]),
        {"a": a, "b": b},
    )
    assert (cut(sums), cut(differences)) == ([[11.0, 22.0], [33.0]], [[9.0, 18.0], [27.0]])


def test_sequences_of_unequal_lengths_give_nan_for_the_example_alone():
    a, b = pad([1.0, 2.0], [3.0]), pad([10.0], [30.0])
    _, sums = layers.dynamic_rnn(lambda old, words: (old, sum(words)), jnp.zeros([2]), [a, b])
    assert np.isnan(sums.values[0]).all()
    assert sums.values[1].tolist() == [33.0]


def test_gradient_is_finite_where_the_step_divides_by_its_word():
    words = pad([1.0, 2.0], [4.0], garbage=0.0)

    def total(scale, values):
        def step(old, word):
            return old + scale * jnp.sqrt(word), scale / word

        last, outputs = layers.dynamic_rnn(step, jnp.zeros([2]), words.with_values(values))
        return (last + outputs.masked().sum(axis=1)).sum()

    of_scale, of_words = jax.grad(total, (0, 1))(2.0, words.values)
    np.testing.assert_allclose(of_scale, 1 + 1 + np.sqrt(2) + 0.5 + 2 + 0.25, rtol=1e-6)
    np.testing.assert_allclose(of_words[1], [2 * 0.25 - 2 / 16, 0], rtol=1e-6)


def block_of_sums(words, value=0.0):
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(words)
        total = rnn.memory(shape=[], value=value)
        rnn.update_memory(total, total + word)
        rnn.output(total + word, total)
    return rnn()


def test_blocks_nest_and_see_what_is_outside():
    words, inner = pad([1.0, 2.0], [5.0]), pad([1.0, 1.0], [2.0, 3.0])
    factor = jnp.array([10.0, 100.0])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(words)
        static = rnn.static_input(inner)
        total = rnn.memory(init=factor)
        sums, _ = block_of_sums(static + word)
        new = total + sums.values[:, -1]
        rnn.update_memory(total, new)
        rnn.output(factor * new)
    # Each word adds the sum of (inner + word): 4 and 6; 15.
    assert cut(rnn()) == [[140.0, 200.0], [11500.0]]


def test_error_in_a_block_is_raised_and_leaves_no_thread():
    before = set(threading.enumerate())
    rnn = layers.DynamicRNN()

    def body():
        with rnn.block():
            rnn.step_input(pad([1.0]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert set(threading.enumerate()) <= before
    # JAX is where it was.
    assert (jnp.ones(2) + 1).tolist() == [2.0, 2.0]
    with pytest.raises(ps.ProgramError, match="called before its block has ended"):
        rnn()


def test_static_rnn_runs_over_the_first_axis():
    x = jnp.arange(6.0).reshape(3, 2)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        total = rnn.memory(shape=[-1], batch_ref=word, init_value=1.0)
        rnn.update_memory(total, total + word)
        rnn.step_output(total + word)
        rnn.output(word)
    sums, words = rnn()
    assert sums.tolist() == [[1.0, 2.0], [3.0, 5.0], [7.0, 10.0]]
    assert words.tolist() == x.tolist()


@pytest.mark.parametrize("is_block", [True, False])
def test_logits_under_a_softmax_of_the_step_are_known_behind_it(is_block):
    def program():
        words = layers.data("x", [2], lod_level=1, buckets=[2])
        if is_block:
            rnn = layers.DynamicRNN()
            with rnn.block():
                word = rnn.step_input(words)
                total = rnn.memory(shape=[2])
                rnn.update_memory(total, total + word)
                rnn.output(layers.softmax(total + word), total)
            probabilities, _ = rnn()
        else:
            _, (probabilities, _) = layers.dynamic_rnn(
                lambda old, word: (old + word, (layers.softmax(old + word), old)),
                jnp.zeros_like(words.values[:, 0]),
                words,
            )
        labels = jnp.ones_like(probabilities.values[..., :1], "int32")
        return layers.cross_entropy(probabilities.values, labels)

    # A probability of e^-200 is 0 in float32, and its logarithm is known from the logits alone.
    losses = infer(program, {"x": [[[100.0, 0.0], [100.0, 0.0]]]})
    np.testing.assert_allclose(losses.reshape(-1), [100, 200], rtol=1e-6)


def broken_block(body, kind=layers.DynamicRNN):
    rnn = kind()
    with rnn.block() if kind is layers.DynamicRNN else rnn.step():
        body(rnn)


WORDS = pad([1.0, 2.0], [3.0])
WRONG = {
    r"DynamicRNN got step_input of an array of shape \(2, 3\), expected a Sequence": (
        lambda rnn: rnn.step_input(jnp.ones([2, 3]))
    ),
    "DynamicRNN got no step_input": lambda rnn: None,
    "DynamicRNN got no output": lambda rnn: rnn.step_input(WORDS),
    "DynamicRNN got no update of memory number 0": (
        lambda rnn: rnn.output(rnn.step_input(WORDS), rnn.memory(shape=[]))
    ),
    r"DynamicRNN got memory\(shape=...\) before any step_input": lambda rnn: rnn.memory(shape=[2]),
    r"DynamicRNN got memory\(init=None, shape=None\), expected one of them": (
        lambda rnn: rnn.memory()
    ),
    "DynamicRNN got update_memory of what is no memory": (
        lambda rnn: rnn.update_memory(rnn.step_input(WORDS), 1.0)
    ),
    r"DynamicRNN got memory\(init=...\) of a value computed in the block": (
        lambda rnn: rnn.memory(init=rnn.step_input(WORDS) + 1)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_block_that_describes_no_step_is_refused(message):
    with pytest.raises(ps.ProgramError, match=rf"layers\.{message}"):
        broken_block(WRONG[message])


def test_memory_of_another_shape_is_refused():
    def body(rnn):
        word = rnn.step_input(WORDS)
        rnn.update_memory(rnn.memory(shape=[2]), word)

    with pytest.raises(ps.ProgramError, match=r"update_memory of shape \(2, 2\) with \(2,\)"):
        broken_block(body)
    with pytest.raises(ps.ProgramError, match=r"new memories of shapes \(2, 1\), expected \(2,\)"):
        layers.dynamic_rnn(lambda old, x: (x.reshape(2, 1), x), jnp.zeros([2]), WORDS)
    with pytest.raises(ps.ProgramError, match="new memory of dtype float32, expected int32"):
        layers.dynamic_rnn(lambda old, x: (x, x), jnp.zeros([2], "int32"), WORDS)


def test_calls_outside_the_block_are_refused():
    rnn = layers.DynamicRNN()
    with pytest.raises(ps.ProgramError, match=r"step_input\(\) outside its block, expected a call"):
        rnn.step_input(WORDS)
    with pytest.raises(ps.ProgramError, match="StaticRNN got step_input of a Sequence"):
        broken_block(lambda rnn: rnn.step_input(WORDS), layers.StaticRNN)
    with pytest.raises(ps.ProgramError, match=r"got an input of \['ArrayImpl'\], expected"):
        layers.dynamic_rnn(lambda old, x: (old, x), jnp.zeros([2]), jnp.ones([2, 3]))
    with pytest.raises(ps.ProgramError, match=r"got a memory of shape \(3,\), expected \[2, ...\]"):
        layers.dynamic_rnn(lambda old, x: (old, x), jnp.zeros([3]), WORDS)


def test_value_of_the_block_used_behind_it_is_refused():
    def program(values):
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(WORDS.with_values(values))
            rnn.output(word)
        return rnn().values + word.reshape(2, 1)

    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(program)(WORDS.values)

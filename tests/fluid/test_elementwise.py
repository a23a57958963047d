"""Fluid's arithmetic: which axes meet, what comes after, what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
import penstock.fluid as fluid
from tests.layers.programs import infer, normal

X = np.abs(normal(2, 3, 4, 5)) + 0.5
FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
}
# Shape of y, axis, and the shape with which numpy repeats it in the same way.
MEETINGS = [
    ([2, 3, 4, 5], -1, [2, 3, 4, 5]),
    ([], -1, [1, 1, 1, 1]),
    ([1], -1, [1, 1, 1, 1]),
    ([5], -1, [1, 1, 1, 5]),
    ([4, 5], -1, [1, 1, 4, 5]),
    ([4, 5], 2, [1, 1, 4, 5]),
    ([3, 4], 1, [1, 3, 4, 1]),
    ([2], 0, [2, 1, 1, 1]),
    ([2, 1], 0, [2, 1, 1, 1]),
    ([3, 1, 1], -1, [1, 3, 1, 1]),
    ([1, 1], 1, [1, 1, 1, 1]),
]


@pytest.mark.parametrize(("shape", "axis", "repeated"), MEETINGS)
def test_axes_of_y_meet_those_of_x_from_axis_on(shape, axis, repeated):
    y = normal(*shape, seed=1)
    result = fluid.layers.elementwise_add(x=jnp.asarray(X), y=jnp.asarray(y), axis=axis)
    np.testing.assert_allclose(result, X + y.reshape(repeated), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_applied_element_by_element(name):
    y = np.abs(normal(3, 4, seed=1)) + 0.5
    layer = getattr(fluid.layers, f"elementwise_{name}")
    result = layer(jnp.asarray(X), jnp.asarray(y), 1)
    np.testing.assert_allclose(result, FUNCTIONS[name](X, y.reshape(1, 3, 4, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ([4], -1),
        ([3, 5], -1),
        ([3, 4], 0),
        ([4, 5], 3),
        ([1, 5], 0),
        ([1, 2, 3, 4, 5], -1),
        ([5], 5),
        ([5], -2),
    ],
)
def test_axes_that_do_not_meet_are_refused(shape, axis):
    with pytest.raises(ps.ProgramError, match=r"elementwise_add got x of shape \(2, 3, 4, 5\), y "):
        fluid.layers.elementwise_add(jnp.asarray(X), jnp.zeros(shape), axis=axis)


def test_activation_comes_last_and_is_checked():
    x, y = jnp.array([-3.0, 1.0]), jnp.array([1.0, 1.0])
    assert fluid.layers.elementwise_add(x, y, act="relu").tolist() == [0.0, 2.0]
    assert fluid.layers.scale(x, 2.0, 1.0, False, "relu").tolist() == [0.0, 4.0]
    assert fluid.layers.reshape(x, [2, 1], act="relu").tolist() == [[0.0], [1.0]]
    with pytest.raises(ps.ProgramError, match=r"act='rellu'.*Did you mean 'relu'"):
        fluid.layers.elementwise_add(x, y, act="rellu")


def test_integers_are_divided_into_integers():
    x, y = jnp.array([[7, -7]]), jnp.array([2, 2])
    assert fluid.layers.elementwise_div(x, y).tolist() == [[3, -3]]


def test_scale_keeps_the_dtype():
    assert fluid.layers.scale(jnp.array([1, 2]), 3, bias=1).dtype == jnp.int32
    assert fluid.layers.scale(jnp.array([1.0]), 3.0, 1.0, bias_after_scale=False).tolist() == [6.0]


def test_sums_adds_arrays_of_one_shape():
    assert fluid.layers.sums(input=[jnp.ones(2), 2 * jnp.ones(2)]).tolist() == [3.0, 3.0]
    assert fluid.layers.sums(jnp.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(ps.ProgramError, match=r"shapes \[\(2,\), \(1,\)\], expected one shape"):
        fluid.layers.sums([jnp.ones(2), jnp.ones(1)])
    with pytest.raises(ps.ProgramError, match="expected one shape"):
        fluid.layers.sums([])


@pytest.mark.parametrize(("shape", "result"), [([-1, 60], (2, 60)), ([0, 0, -1], (2, 3, 20))])
def test_reshape_keeps_and_completes_sizes(shape, result):
    assert fluid.layers.reshape(jnp.zeros([2, 3, 4, 5]), shape=shape).shape == result


@pytest.mark.parametrize("shape", [[7, -1], [-1, -1], [2, 3, 4, 5, 0], [3, 50]])
def test_reshape_refuses_sizes_that_do_not_fit(shape):
    with pytest.raises(ps.ProgramError, match="reshape got shape"):
        fluid.layers.reshape(jnp.zeros([2, 3, 4, 5]), shape=shape)


def test_layers_keep_the_batch_axis_in_a_program():
    def program():
        image = fluid.layers.data(name="image", shape=[3, 4])
        gain = fluid.layers.data(name="gain", shape=[1])
        scaled = fluid.layers.elementwise_mul(image, gain, axis=0)
        return fluid.layers.reshape(fluid.layers.sums([scaled, image]), shape=[0, -1])

    feed = {"image": normal(5, 3, 4), "gain": normal(5, 1)}
    expected = feed["image"] * (feed["gain"][:, :, None] + 1)
    np.testing.assert_allclose(infer(program, feed), expected.reshape(5, 12), rtol=1e-5)


LENGTHS = jnp.array([3, 1])
WORDS = ps.Sequence(jnp.asarray(normal(2, 4, 5)), LENGTHS)
# What y is, the axis, and with which shape it meets the words' values [2, 4, 5].
WORD_MEETINGS = [
    (ps.Sequence(jnp.asarray(normal(2, 4, 5, seed=1)), LENGTHS), -1, [2, 4, 5]),
    # Padded to another length.
    (ps.Sequence(jnp.asarray(normal(2, 3, 5, seed=1)), LENGTHS), -1, [2, 3, 5]),
    (ps.Sequence(jnp.asarray(normal(2, 4, 1, seed=1)), LENGTHS), 0, [2, 4, 1]),
    (ps.Sequence(jnp.asarray(normal(2, 4, seed=1)), LENGTHS), 0, [2, 4, 1]),
    (normal(2, 5, seed=1), -1, [2, 1, 5]),
    (normal(2, seed=1), 0, [2, 1, 1]),
    (normal(5, seed=1), -1, [1, 1, 5]),
    (normal(1, seed=1), -1, [1, 1, 1]),
    (0.5, -1, []),
]


@pytest.mark.parametrize("number", range(len(WORD_MEETINGS)))
def test_every_word_of_a_sequence_is_a_row(number):
    y, axis, shape = WORD_MEETINGS[number]
    result = fluid.layers.elementwise_sub(WORDS, y, axis)
    met = np.reshape(getattr(y, "values", y), shape)
    length = min(4, met.shape[1]) if met.ndim and met.shape[1] > 1 else 4
    expected = ps.Sequence(WORDS.values[:, :length] - met, LENGTHS)
    for actual, wanted in zip(result.cut(), expected.cut(), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_sequences_of_other_lengths_give_nan_in_that_example():
    other = ps.Sequence(WORDS.values, jnp.array([3, 2]))
    for result in (fluid.layers.elementwise_add(WORDS, other), fluid.layers.sums([WORDS, other])):
        assert np.isnan(result.values).all(axis=(1, 2)).tolist() == [False, True]


def test_layers_of_one_operand_take_sequences():
    doubled = fluid.layers.scale(WORDS, 2.0, bias=1.0, act="relu")
    np.testing.assert_allclose(doubled.values, np.maximum(2 * WORDS.values + 1, 0), rtol=1e-5)
    whole = fluid.layers.cast(WORDS, "int64")
    np.testing.assert_array_equal(whole.values, WORDS.values.astype("int32"))
    total = fluid.layers.sums([WORDS, WORDS, WORDS])
    np.testing.assert_allclose(total.values, 3 * WORDS.values, rtol=1e-5)
    flat = fluid.layers.reshape(WORDS, [-1, 5, 1])
    assert flat.values.shape == (2, 4, 5, 1)
    for result in (doubled, whole, total, flat):
        assert result.lengths.tolist() == [3, 1]


def test_reshape_of_words_into_more_words_is_refused():
    words = ps.Sequence(jnp.zeros([2, 4, 6]), LENGTHS)
    with pytest.raises(
        ps.ProgramError, match=r"shape \[-1, 3\] for words of shape \(6,\).*_reshape"
    ):
        fluid.layers.reshape(words, [-1, 3])

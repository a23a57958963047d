"""Conditional random fields against all paths of tags."""

import jax
import jax.numpy as jnp
import numpy as np

from penstock import layers
from penstock._program.sequences import Sequence
from tests.layers import alone
from tests.layers.programs import normal

LENGTHS = (4, 0, 1, 3, 2)
NUM_TAGS = 3
RANDOM = np.random.default_rng(0)
WORDS = [normal(n, NUM_TAGS, seed=n) * 2 for n in LENGTHS]
TAGS = [RANDOM.integers(0, NUM_TAGS, (n, 1)).astype(np.int32) for n in LENGTHS]
FIRST = [tags[:1] for tags in TAGS]
PARAMS = {"crfw": normal(NUM_TAGS + 2, NUM_TAGS, seed=9)}


def loss(words, tags):
    return layers.linear_chain_crf(words, tags, param_attr="crfw")


def decode(words, tags=None):
    return layers.crf_decoding(words, layers.ParamAttr(name="crfw"), tags)


def test_crf_of_large_scores_and_forbidden_transitions_is_finite():
    w = PARAMS["crfw"].copy()
    w[2, 1] = -1e4
    words, tags = alone.pad([WORDS[0] * 1000], 4), alone.pad([TAGS[0]], 4)

    def total(values, w):
        out = alone.run(lambda: loss(words.with_values(values), tags), {"crfw": w}, 1)
        return jnp.sum(out)

    gradients = jax.jit(jax.grad(total, (0, 1)))(words.values, jnp.asarray(w))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_decoding_takes_the_lower_of_equal_tags():
    words = Sequence(jnp.zeros([1, 3, NUM_TAGS]), jnp.array([3]))
    zeros = {"crfw": jnp.zeros([NUM_TAGS + 2, NUM_TAGS])}
    assert not jax.jit(lambda: alone.run(lambda: decode(words), zeros, 1))().values.any()


def test_decoding_with_labels_tells_where_they_are_right():
    words, tags, few = (alone.pad(*pair) for pair in ((WORDS, 5), (TAGS, 7), (FIRST, 1)))
    every = lambda: (decode(words), decode(words, tags), decode(words, few))  # noqa: E731
    path, right, of_few = jax.jit(lambda: alone.run(every, PARAMS, 5))()
    for actual, wanted, marks in zip(path.cut(), TAGS, right.cut(), strict=True):
        np.testing.assert_array_equal(marks, (actual == wanted).astype(int))
    # Every word is marked, also where labels are padded to less.
    assert [len(marks) for marks in of_few.cut()] == [len(sentence) for sentence in WORDS]
    assert not of_few.values[:, 1:].any()


def test_crf_of_a_label_that_does_not_fit_is_nan_for_its_example_alone():
    tags = [sequence.copy() for sequence in TAGS]
    tags[0][2], tags[3][1], tags[4] = -1, NUM_TAGS, tags[4][:-1]
    inputs = alone.pad(WORDS, 4), alone.pad(tags, 4)
    out = jax.jit(lambda x, y: alone.run(lambda: loss(x, y), PARAMS, 5))(*inputs)
    assert np.isnan(out[:, 0]).tolist() == [True, False, False, True, True]

"""CTC against all alignments, its decoder and the edit distance against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._program.sequences import Sequence
from tests.layers import alone, references
from tests.layers.programs import normal

NUM_CLASSES = 3
STEPS = (4, 0, 0, 1, 1, 4, 4, 2)
LABELS = ([1, 2], [], [2], [1], [], [1, 1], [], [1, 1])
"""The third and the last do not fit into their steps."""

LOGITS = [normal(n, NUM_CLASSES, seed=n) for n in STEPS]


def as_ids(strings, dtype=np.int32):
    return [np.array(string, dtype).reshape(-1, 1) for string in strings]


def loss_and_gradient(logits, label, **options):
    def total(values):
        return jnp.sum(layers.warpctc(logits.with_values(values), label, **options))

    return jax.jit(jax.value_and_grad(total))(logits.values)


def test_norm_by_times_divides_the_gradient_and_not_the_loss():
    logits, label = alone.pad(LOGITS, 4), alone.pad(as_ids(LABELS), 2)
    loss, gradient = loss_and_gradient(logits, label)
    same, divided = loss_and_gradient(logits, label, norm_by_times=True)
    np.testing.assert_allclose(same, loss, rtol=1e-6)
    steps = np.maximum(STEPS, 1).reshape(-1, 1, 1)
    np.testing.assert_allclose(divided, gradient / steps, rtol=1e-5, atol=1e-6)


def test_warpctc_of_an_unlikely_path_is_its_cost():
    # Below optax's own logarithm of zero, -1e5, as a path of thousands of steps may be.
    logits = Sequence(jnp.zeros([1, 3, 2]).at[:, :, 1].set(-2e5), jnp.array([3]))
    label = Sequence(jnp.ones([1, 1, 1], jnp.int32), jnp.array([1]))
    loss, gradient = loss_and_gradient(logits, label)
    np.testing.assert_allclose(loss, 2e5 - np.log(3), rtol=1e-6)
    # A float32 of this size is precise to 0.016.
    np.testing.assert_allclose(gradient.sum(axis=(0, 1)), [1, -1], rtol=0.02)


def test_warpctc_of_a_label_that_is_no_class_is_nan_for_its_example_alone():
    labels = [[-1, 1], *LABELS[1:3], [0], *LABELS[4:7], [NUM_CLASSES]]
    inputs = alone.pad(LOGITS, 4), alone.pad(as_ids(labels), 2)
    is_nan = np.isnan(jax.jit(layers.warpctc)(*inputs)[:, 0])
    assert is_nan.tolist() == [True, False, False, True, False, False, False, True]


def test_greedy_decoder_merges_runs_and_leaves_out_blanks():
    strings = ([1, 1, 0, 1, 2, 2], [], [0, 0], [2], [0, 1, 0, 1], [2, 2, 2, 2])
    scores = [np.eye(NUM_CLASSES, dtype="f")[np.array(string, int)] for string in strings]
    for blank in (0, 2):
        out = jax.jit(lambda x, blank=blank: layers.ctc_greedy_decoder(x, blank))(
            alone.pad(scores, 9)
        )
        assert out.values.shape == (6, 9, 1)
        assert out.values.dtype == np.int32
        merged = [ids[:, 0].tolist() for ids in out.cut()]
        assert merged == [references.merge(string, blank) for string in strings]


def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def draw_strings():
    random = np.random.default_rng(1)
    lengths = [(0, 3), (4, 0), (0, 0), (1, 1), *random.integers(1, 12, (20, 2)).tolist()]
    return [[random.integers(0, 4, n).tolist() for n in pair] for pair in lengths]


@pytest.mark.quick("True-ignored1")
@pytest.mark.parametrize("ignored", [None, [0, 3]])
@pytest.mark.parametrize("normalized", [True, False])
def test_edit_distance_is_that_of_a_plain_loop(normalized, ignored):
    strings = draw_strings()
    inputs = [alone.pad(as_ids(column), 13) for column in zip(*strings, strict=True)]

    @jax.jit
    def measure(a, b):
        return alone.run(lambda: layers.edit_distance(a, b, normalized, ignored), {}, len(strings))

    distances, count = measure(*inputs)
    assert count == len(strings)
    assert distances.dtype == np.float32
    for (a, b), distance in zip(strings, np.asarray(distances)[:, 0], strict=True):
        a, b = ([token for token in s if token not in (ignored or ())] for s in (a, b))
        expected = levenshtein(a, b)
        if normalized:
            expected = expected / len(b) if b else (np.inf if a else 0)
        assert distance == pytest.approx(expected)

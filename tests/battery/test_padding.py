"""Rows that the host adds to a batch reach no layer: nothing shows of nan and large integers."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._padded_batches import Feeder
from tests.battery.harness import CASES, assert_same, reference, run
from tests.battery.test_battery import QUICK


def poison(array, count):
    spoilt = np.array(array)
    is_float = np.issubdtype(spoilt.dtype, np.floating)
    spoilt[count:] = np.nan if is_float else np.iinfo(spoilt.dtype).max
    return spoilt


@pytest.fixture
def poisoned(monkeypatch):
    """Let the host add rows of nan and the largest integers; return how many it has added."""
    pad, added = Feeder._pad, []

    def pad_with_poison(feeder, batch, size, lengths):
        sizes = {getattr(c, "num_examples", None) or len(c) for c in batch.values()}
        (count,) = sizes
        added.append(size - count)
        return jax.tree.map(lambda x: poison(x, count), pad(feeder, batch, size, lengths))

    monkeypatch.setattr(Feeder, "_pad", pad_with_poison)
    return added


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK[:1] else pytest.mark.slow) for n in CASES]
)
def test_program_sees_nothing_of_the_padding(name, poisoned):
    case = CASES[name]
    made, expected = run(case, jax.devices()[:8], case.sizes), reference(name)
    assert max(poisoned) > 0
    for size in case.sizes:
        assert_same(made[size], expected[size], case.rtol, f"{size} examples:")


def tagger():
    words = layers.data("words", [1], "int32", lod_level=1)
    hidden = layers.fc(layers.embedding(words, [50, 4]), 5, act="tanh")
    last = layers.sequence_pool(layers.batch_norm(hidden), "max")
    loss = layers.mean(layers.fc(last, 1) ** 2)
    return loss, layers.mean(hidden)


def test_sequences_see_nothing_of_the_padding(poisoned):
    batch = {"words": [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]}
    found = []
    for number in (1, 3):
        builder = ps.ProgramBuilder(tagger, optax.sgd(0.1), place=jax.devices()[:number])
        state, _ = builder.train(builder.init(), batch)
        found.append([float(x) for x in builder.test(state, batch)])
    assert max(poisoned) > 0
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)

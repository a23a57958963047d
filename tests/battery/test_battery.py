"""Programs in other people's styles: a network means on eight devices what it means on one.

Rows that the host adds to a batch reach no layer: nothing shows of nan and large integers.
"""

import importlib

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._padded_batches import Feeder
from tests.battery.harness import CASES, FULL_AND_UNEVEN, SIZES, UNEVEN, assert_same, expect, run

THEMES = (
    *("callbacks", "contrastive", "control_flow", "generative", "gradients", "losses", "modules"),
    *("operations", "partitioner", "programs", "reductions"),
)
for theme in THEMES:
    importlib.import_module(f"tests.battery.{theme}")

# One of each kind, for the quick tests.
QUICK = ("contrastive-simclr-8", "modules-BatchNorms-8")

PLACES = {
    "1": lambda: jax.devices()[:1],
    "3": lambda: jax.devices()[:3],
    "4x2": lambda: ps.mesh(data=4, model=2),
    "8": lambda: jax.devices()[:8],
}


# What tells a place apart: on one device every batch is full, what three have of a single row eight
# have too, and beside a second axis a batch that four do not divide is whole on each device.
SIZES_OF = {"1": UNEVEN, "3": FULL_AND_UNEVEN, "4x2": FULL_AND_UNEVEN, "8": SIZES}


def variants():
    """Yield each case on one, three and eight devices and on a mesh."""
    for name, case in CASES.items():
        for place, sizes in SIZES_OF.items():
            # On one device what cannot run without penstock would be compared with itself.
            if place != "1" or case.bare is not None:
                variant = f"{name}-{place}"
                marks = () if variant in QUICK else (pytest.mark.slow,)
                yield pytest.param(name, place, sizes, id=variant, marks=marks)


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


@pytest.mark.parametrize(("name", "place", "sizes"), list(variants()))
def test_program_trains_and_tests_as_on_one_device_alone(name, place, sizes, poisoned):
    case, tested = CASES[name], FULL_AND_UNEVEN if place == "8" else UNEVEN
    made = run(case, PLACES[place](), [size for size in sizes if size in case.sizes], tested)
    for size in made:
        assert_same(made[size], expect(name, size, tested), case.rtol, f"{size} examples:")
    assert max(poisoned, default=0) > 0 or place == "1"


def tagger():
    words = layers.data("words", [1], "int32", lod_level=1)
    hidden = layers.fc(layers.embedding(words, [50, 4]), 5, act="tanh")
    last = layers.sequence_pool(layers.batch_norm(hidden), "max")
    loss = layers.mean(layers.fc(last, 1) ** 2)
    return loss, layers.mean(hidden)


def test_sequences_see_nothing_of_the_padding(poisoned):
    batch = {"words": [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]}
    losses = []
    for number in (1, 3):
        builder = ps.ProgramBuilder(tagger, optax.sgd(0.1), place=jax.devices()[:number])
        state, _ = builder.train(builder.init(), batch)
        losses.append([float(x) for x in builder.test(state, batch)])
    assert max(poisoned) > 0
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)

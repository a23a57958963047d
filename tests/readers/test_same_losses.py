"""One training run, fed from every kind of reader: the same samples in the same order, the same
losses, bit for bit.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.readers import Shard
from tests.readers import cases, record_cases
from tests.readers.samples import BATCH_SIZE, NUM_SAMPLES, Records, columns

ROWS = [Records()[number] for number in range(NUM_SAMPLES)]


def train_program() -> Any:
    x = layers.data("x", shape=[3])
    return layers.mean(jnp.square(layers.fc(x / 10, size=2, act="tanh") - 0.5))


def losses(reader: Any, **options: Any) -> list[float]:
    seen: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, ps.EndStep):
            seen.append(float(event.metrics))

    trainer = ps.Trainer(train_program, optax.sgd(0.5), place=jax.devices("cpu")[0])
    trainer.train(reader, on_event, num_epochs=2, **options)
    return seen


@pytest.fixture(scope="module")
def expected():
    values = losses(readers.arrays(columns(), BATCH_SIZE))
    assert len(values) == len(set(values)) == 2 * -(-NUM_SAMPLES // BATCH_SIZE)
    return values


def fluid() -> Any:
    return readers.batch(readers.buffered(lambda: ((row["x"],) for row in ROWS), 8), BATCH_SIZE)


def image_folder() -> Any:
    take = lambda sample: {"x": sample["image"][0, 0].astype(np.float32)}  # noqa: E731
    return record_cases.image_folder(Shard(), shuffle=False, decode=take)


def grain() -> Any:
    import grain

    return grain.MapDataset.source(Records()).batch(BATCH_SIZE)


FEEDS = {
    "indexed": lambda: cases.indexed(num_workers=2)(Shard()),
    "xmap_readers": lambda: readers.batch(
        readers.xmap_readers(dict, ROWS, 2, 4, order=True), BATCH_SIZE
    ),
    "tuples": lambda: readers.arrays((columns()["x"],), BATCH_SIZE),
    "fluid": fluid,
    "image_folder": image_folder,
    "tfrecord": lambda: record_cases.tfrecord(Shard(), shuffle=False),
    "ofrecord": lambda: record_cases.ofrecord(Shard(), shuffle=False),
    "grain": grain,
}


@pytest.mark.quick("tuples")
@pytest.mark.parametrize("name", FEEDS)
def test_losses_are_the_same_whatever_feeds_the_run(name, expected):
    options = {"feed_order": ["x"]} if name in {"fluid", "tuples"} else {}
    assert losses(FEEDS[name](), **options) == expected

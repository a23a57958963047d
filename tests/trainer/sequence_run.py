"""A run on sequences that several processes may share, and what it says."""

from typing import Any

import numpy as np
import optax

import penstock as ps
from penstock import layers, readers

NUM_SAMPLES, BATCH_SIZE = 21, 4  # the last batch has one sample, of which one process has no part
BUCKETS = [8, 16]


def program() -> Any:
    """Return loss and accuracy of a tagger, and a value of each example."""
    words = layers.data("words", [1], "int32", lod_level=1, buckets=BUCKETS)
    tags = layers.data("tags", [1], "int32", lod_level=1, buckets=BUCKETS)
    hidden = layers.fc(layers.embedding(words, [11, 4]), 5, act="tanh")
    hidden = layers.dropout(layers.batch_norm(hidden), 0.1)
    scores = layers.fc(hidden, 3, act="softmax")
    loss = layers.mean(layers.cross_entropy(scores, tags))
    return loss, layers.accuracy(scores, tags), layers.sequence_pool(scores, "max")


def make_samples(num_samples: int = NUM_SAMPLES, longest: int = 16) -> list[Any]:
    """Return words and tags of random lengths."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, longest + 1, num_samples)
    return [(random.integers(0, 11, n), random.integers(0, 3, n)) for n in lengths]


def make_reader(samples: list[Any], **options: Any) -> Any:
    """Return batches of samples of about one length, shuffled."""
    options = {"batch_size": BATCH_SIZE, "boundaries": BUCKETS, "pool_batches": 3, **options}
    numbers = readers.arrays({"number": np.arange(len(samples))}, None, shard=readers.Shard())
    source = readers.map_readers(lambda row: samples[int(row["number"])], numbers)
    return readers.batch_by_length(source, field=0, **options)


def run(shard: readers.Shard, place: Any = None) -> Any:
    """Return the metrics of each step and epoch of two epochs, of a test, and the parameters."""
    trainer, metrics = ps.Trainer(program, optax.adam(0.05), place=place), []

    def keep(event: Any) -> None:
        if isinstance(event, ps.EndStep | ps.EndEpoch):
            metrics.append([float(value) for value in event.metrics[:2]])

    reader, order = make_reader(make_samples(), shard=shard), ["words", "tags"]
    trainer.train(reader, keep, num_epochs=2, feed_order=order)
    tested = [np.asarray(value).tolist() for value in trainer.test(reader, feed_order=order)]
    parameters = {name: value.tolist() for name, value in trainer.parameters.items()}
    return {"said": metrics, "tested": tested, "parameters": parameters}

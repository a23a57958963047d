"""Words per second of an LSTM on sequences of varying length, by way of padding and batching.

    python -m benchmarks bucketing

Lengths follow a gamma distribution of mean 40, the longest is 400. The network is an embedding of
64, an LSTM of 128, the maximum over the words, and two classes; Adam, batch 32. A round is one
epoch of the same samples. Padding does not count as words. Compilation happens before the first
round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers, readers

LONGEST, MEAN, SHAPE = 400, 40, 1.2
BATCH_SIZE, VOCABULARY, NUM_SAMPLES = 32, 2000, 1024

Batches = list[dict[str, Any]]


def make_samples(count: int) -> list[dict[str, np.ndarray]]:
    """Return samples of random words."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.gamma(SHAPE, MEAN / SHAPE, count), 1, LONGEST).astype(int)
    lengths[0] = LONGEST
    return [
        {
            "words": rng.integers(0, VOCABULARY, [length, 1], dtype=np.int32),
            "label": rng.integers(0, 2, [1], dtype=np.int32),
        }
        for length in lengths
    ]


def _program(buckets: Sequence[int]) -> jax.Array:
    words = layers.data("words", [1], "int32", lod_level=1, buckets=buckets)
    label = layers.data("label", [1], "int32")
    embedded = layers.embedding(words, [VOCABULARY, 64])
    hidden, _ = layers.dynamic_lstm(layers.fc(embedded, 4 * 128), 4 * 128, use_peepholes=False)
    logits = layers.fc(layers.sequence_pool(hidden, "max"), 2)
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


def _collect(batches: Iterable[list[dict[str, np.ndarray]]]) -> Batches:
    return [
        {
            "words": [sample["words"] for sample in batch],
            "label": np.stack([sample["label"] for sample in batch]),
        }
        for batch in batches
    ]


def _count_padded(batches: Batches, buckets: Sequence[int]) -> int:
    longest = [max(map(len, batch["words"])) for batch in batches]
    padded = [min(each for each in buckets if each >= length) for length in longest]
    return sum(p * len(b["words"]) for p, b in zip(padded, batches, strict=True))


def _train(batches: Batches, buckets: Sequence[int]) -> Callable[[], object]:
    builder = ps.ProgramBuilder(
        lambda: _program(buckets), optax.adam(1e-3), place=jax.devices()[:1]
    )
    holder = [builder.init()]

    def train() -> None:
        values = None
        for batch in batches:
            holder[0], values = builder.train(holder[0], batch)
        jax.block_until_ready((holder[0], values))

    return train


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bucketing")
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args(list(arguments))
    samples = make_samples(flags.samples)
    num_words = sum(len(sample["words"]) for sample in samples)
    learned = readers.learn_buckets(samples, field="words")
    shuffled = _collect(readers.batch(readers.shuffle(samples, len(samples)), BATCH_SIZE))

    def by_length(**options: Any) -> Batches:
        made = readers.batch_by_length(samples, field="words", boundaries=learned, **options)
        return _collect(made)

    powers = [16, 32, 64, 128, 256, 512]
    ways = {
        "padded to the longest": (shuffled, [LONGEST]),
        "powers of two, shuffled": (shuffled, powers),
        "learned buckets, shuffled": (shuffled, learned),
        "batch_by_length, 32 samples": (by_length(batch_size=BATCH_SIZE), learned),
        "batch_by_length, 1600 words": (by_length(words_per_batch=BATCH_SIZE * 50), learned),
    }
    contenders = {name: _train(*way) for name, way in ways.items()}
    seconds = _timing.alternate(contenders, rounds=flags.rounds, units=1)
    base = next(iter(ways))
    rows = []
    for name, (batches, buckets) in ways.items():
        share = num_words / _count_padded(batches, buckets)
        speed = num_words / statistics.median(seconds[name])
        faster = 1 / _timing.ratio(seconds, name, base)
        rows.append([name, str(len(batches)), f"{share:.0%}", f"{speed:,.0f}", f"{faster:.1f}"])
    print(f"{_timing.environment()}\n\n{num_words} words, learned buckets {learned}\n")
    header = ["how", "batches", "words of all that is computed", "words a second", "times as many"]
    print(_timing.table(header, rows))


if __name__ == "__main__":
    main()

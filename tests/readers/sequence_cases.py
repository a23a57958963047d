"""Readers of sequences of any length, as cases of the contract."""

from typing import Any

import numpy as np

from penstock import readers
from penstock.readers import Shard
from tests.readers.case import Case
from tests.readers.samples import (
    BATCH_SIZE,
    broken_source,
    columns,
)


def samples(shard: Shard) -> Any:
    """Return a shuffled reader of this shard's samples, for decorators."""
    return readers.arrays(columns(), None, shuffle=True, seed=3, shard=shard)


def by_length(of_stream: Shard, **options: Any) -> Any:
    return readers.batch_by_length(
        samples(of_stream),
        length=lambda sample: int(sample["id"]) * 7 % 11,
        pool_batches=2,
        **options,
    )


def packed(shard: Shard) -> Any:
    sequences = readers.map_readers(lambda sample: make_words(sample["id"]), samples(shard))
    return readers.map_readers(
        lambda row: np.unique(row["words"][row["words_segment_ids"] > 0]),
        readers.pack(sequences, field="words", length=12, open_rows=3),
    )


def make_words(number: Any) -> np.ndarray:
    """Return words that are the sample's number; as many for each, so that epochs are alike."""
    return np.full(4, number)


SEQUENCES = [
    Case(
        name="batch_by_length",
        make=lambda shard: by_length(shard, batch_size=4),
        broken=lambda: (
            readers.batch_by_length(broken_source, length=lambda _: 1, batch_size=4),
            "while reading item 13 of epoch 0",
        ),
    ),
    Case(
        name="batch_by_length-of-a-global-stream",
        make=lambda shard: by_length(Shard(), batch_size=BATCH_SIZE, shard=shard),
        is_lockstep=True,
    ),
    Case(
        name="batch_by_length-by-words",
        make=lambda shard: by_length(
            Shard(), words_per_batch=80, batch_multiple_of=6, boundaries=[4, 11], shard=shard
        ),
        has_length=False,
        is_lockstep=True,
    ),
    Case(
        name="pack",
        make=packed,
        broken=lambda: (
            readers.pack(
                readers.map_readers(lambda s: [s["id"]], broken_source), field="words", length=2
            ),
            "while reading item 13 of epoch 0",
        ),
        has_length=False,
    ),
]

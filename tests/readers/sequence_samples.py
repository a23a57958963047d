"""Samples of several lengths, numbered as those of `samples`, and ways to read them."""

import json
import warnings
from typing import Any

import numpy as np

from penstock import readers
from penstock.readers import Shard
from tests.readers.samples import NUM_SAMPLES


def make_sample(number: int) -> dict[str, Any]:
    """Return a sample of 0 to 10 words, which carry its number."""
    return {"id": np.int64(number), "words": np.full(number * 7 % 11, number)}


def sequence_samples(shard: Shard, count: int = NUM_SAMPLES) -> Any:
    """Return a shuffled reader of this shard's samples, with an exact position."""
    numbers = readers.arrays({"id": np.arange(count)}, None, shuffle=True, seed=3, shard=shard)
    return readers.map_readers(lambda sample: make_sample(int(sample["id"])), numbers)


def of_lengths(*lengths: int) -> list[dict[str, Any]]:
    """Return samples of these lengths, numbered from 0."""
    return [{"id": i, "words": np.full(n, i)} for i, n in enumerate(lengths)]


def read_resumed(reader: Any, num_before: int, epoch: int = 0) -> list[Any]:
    """Return what is left after a state, saved as JSON and restored on another iterator."""
    reader.next_epoch = epoch
    with reader() as iterator:
        for _ in range(num_before):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
    reader.next_epoch = 0
    with reader() as iterator, warnings.catch_warnings():
        # Of sources whose position is counted.
        warnings.simplefilter("ignore", UserWarning)
        next(iterator, None)
        iterator.set_state(state)
        return list(iterator)

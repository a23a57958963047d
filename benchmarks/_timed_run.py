"""One of the processes that `processes` times: `_timed_run.py GLOBAL_BATCH NUM_STEPS`.

Process 0 prints JSON: the seconds of a step (the median over epochs), of an exchange between the
processes, and the seconds that their agreement adds to a step.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from penstock.distributed.group import find_group

_EPOCH, _NUM_EXCHANGES = 20, 50


def program() -> Any:
    """Return the loss of a small perceptron."""
    hidden = layers.fc(layers.data("x", shape=[784]), size=256, act="relu")
    logits = layers.fc(hidden, size=10)
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


def main(batch_size: int, num_steps: int) -> None:
    """Train, with the time taken at the end of each epoch."""
    rng, size = np.random.default_rng(0), batch_size * _EPOCH
    data = {
        "x": rng.normal(size=(size, 784)).astype(np.float32),
        "label": rng.integers(10, size=(size, 1)).astype(np.int32),
    }
    trainer = ps.Trainer(program, optax.sgd(0.01))
    times = []

    def on_event(event: object) -> None:
        if isinstance(event, ps.EndEpoch):
            jax.block_until_ready(event.metrics)  # read: the epoch's steps are done
            times.append(time.perf_counter())

    trainer.train(readers.arrays(data, batch_size), on_event, num_epochs=num_steps // _EPOCH)
    # Without the first epoch, which compiles.
    blocks = [(after - before) / _EPOCH for before, after in itertools.pairwise(times)]
    group = find_group()
    start = time.perf_counter()
    for _ in range(_NUM_EXCHANGES):
        group.exchange("a measurement")
    exchange_secs = (time.perf_counter() - start) / _NUM_EXCHANGES
    # What the loop does for the others in a step: a number, and a look at an attribute.
    start = time.perf_counter()
    for step in range(10_000):
        group.advance(step)
        if group.is_asked:
            break
    agreement_secs = (time.perf_counter() - start) / 10_000
    if not jax.process_index():
        result = [statistics.median(blocks), exchange_secs, agreement_secs]
        print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    ps.distributed.initialize()
    main(int(sys.argv[1]), int(sys.argv[2]))

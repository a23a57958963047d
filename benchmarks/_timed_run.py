"""One of the processes that `processes` times: `_timed_run.py GLOBAL_BATCH NUM_STEPS`.

Process 0 prints as JSON: seconds of a step (the median of blocks), of an exchange between the
processes, and of what agreement adds to a step.
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
from penstock.distributed.this_process import find_group

_BLOCK, _NUM_EXCHANGES = 10, 50


def program() -> Any:
    """Return the loss of a small perceptron."""
    hidden = layers.fc(layers.data("x", shape=[784]), size=256, act="relu")
    logits = layers.fc(hidden, size=10)
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


def main(batch_size: int, num_steps: int) -> None:
    """Train, with the time taken at every tenth step."""
    rng, size = np.random.default_rng(0), batch_size * 20
    data = {
        "x": rng.normal(size=(size, 784)).astype(np.float32),
        "label": rng.integers(10, size=(size, 1)).astype(np.int32),
    }
    trainer = ps.Trainer(program, optax.sgd(0.01))
    times = []

    def on_event(event: object) -> None:
        if isinstance(event, ps.EndStep) and not event.global_step % _BLOCK:
            times.append(time.perf_counter())

    trainer.train(readers.arrays(data, batch_size), on_event, num_epochs=num_steps // 20)
    blocks = [(b - a) / _BLOCK for a, b in itertools.pairwise(times[2:])]
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

"""The stall of training at the first short batch, against the time that its compilation takes.

A data set whose last batch is short needs a second program. Where the reader tells its length, that
is compiled in a thread beside the steps before; a reader that does not tell stalls for the whole
compilation. Both train the same network, alternately, one epoch of full batches and a short one.
The second step of that size shows what is no stall.

    python -m benchmarks short_batches
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import models, readers

NETWORK, IMAGE_SIZE, NUM_CLASSES = "resnet_cifar10_8", 32, 10
BATCH_SIZE, NUM_FULL, SHORT = 32, 120, 13
ROUNDS = 5


def measure(tells_length: bool) -> tuple[float, float, int]:
    """Return the seconds of the short step, of a step as long, and how often was compiled."""
    rng = np.random.default_rng(0)
    number = BATCH_SIZE * NUM_FULL + SHORT
    data = {
        "image": rng.normal(size=(number, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32),
        "label": rng.integers(0, NUM_CLASSES, (number, 1)).astype(np.int32),
    }
    told = readers.arrays(data, batch_size=BATCH_SIZE, shuffle=False)

    def untold() -> Iterator[Any]:
        yield from told()

    network = models.classifier(NETWORK, NUM_CLASSES, image_size=IMAGE_SIZE)
    trainer = ps.Trainer(network.train_program, optax.sgd(0.01), place=jax.devices()[0])
    times: list[float] = []

    def note(event: object) -> None:
        if isinstance(event, ps.EndStep):
            # Waits, so that the time between two is that of a step.
            event.metrics  # noqa: B018
            times.append(time.perf_counter())

    trainer.train(told if tells_length else untold, note, num_epochs=2)
    steps = np.diff(times)
    # The short step is the last of the first epoch, and of the second.
    first, second = steps[NUM_FULL - 1], steps[2 * NUM_FULL]
    return float(first), float(second), trainer.builder.num_compiles["train"]


def main() -> None:
    """Print the stall with and without a reader that tells the length, and their ratio."""
    jax.config.update("jax_enable_compilation_cache", False)
    print(_timing.environment())
    print(f"load average before: {os.getloadavg()[0]:.1f}\n")
    stalls: dict[bool, list[float]] = {True: [], False: []}
    compiles = set[int]()
    for _ in range(ROUNDS):
        for tells in (True, False):
            first, second, number = measure(tells)
            stalls[tells].append(first - second)
            compiles.add(number)
    ratios = [a / b for a, b in zip(stalls[True], stalls[False], strict=True)]
    rows = [
        ["tells its length", f"{statistics.median(stalls[True]):.2f} s"],
        ["does not: the compilation", f"{statistics.median(stalls[False]):.2f} s"],
        ["ratio, median of rounds (at most 0.2)", f"{statistics.median(ratios):.2f}"],
        ["compiles of two epochs", ", ".join(map(str, sorted(compiles)))],
    ]
    print(_timing.table(["reader", f"stall at the first short batch, {NETWORK}"], rows))

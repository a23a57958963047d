"""What `handlers.Gradients` costs: training with it and without, and a step that it measures.

    python -m benchmarks gradients
    python -m benchmarks gradients --network lenet --rounds 3

One trainer alternates between training without the handler and with it: 100 steps with a
measurement every 100, and 10 steps with a measurement at each. Ratios are per round. The networks
are the library's, trained by SGD with momentum.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import handlers, models

SHAPES = {"lenet": (28, 28, 1), "resnet_cifar10": (32, 32, 3)}
EVERY_STEPS = 100
NUM_CLASSES = 10


def _make(network: str, batch_size: int) -> tuple[ps.Trainer, list[dict[str, Any]]]:
    """Return a trainer on the first device, and batches of one epoch of 100 steps."""
    made = models.classifier(network, NUM_CLASSES, image_size=SHAPES[network][0])
    trainer = ps.Trainer(made.train_program, optax.sgd(1e-3, momentum=0.9), place=jax.devices()[:1])
    generator = np.random.default_rng(0)
    batches = [
        {
            "image": generator.normal(size=(batch_size, *SHAPES[network])).astype(np.float32),
            "label": generator.integers(NUM_CLASSES, size=(batch_size, 1)),
        }
        for _ in range(8)
    ]
    return trainer, (batches * EVERY_STEPS)[:EVERY_STEPS]


def _compare(
    trainer: ps.Trainer, batches: list[dict[str, Any]], every_steps: int, rounds: int
) -> list[str]:
    """Return medians without and with the handler, and the ratio with its least and greatest."""
    gradients = handlers.Gradients(every_steps)
    contenders = {
        "without": lambda: trainer.train(batches, []),
        "with": lambda: trainer.train(batches, [gradients]),
    }
    seconds = _timing.alternate(contenders, rounds=rounds, units=len(batches))
    medians = [f"{statistics.median(each) * 1e3:.3g}" for each in seconds.values()]
    ratios = [ours / alone for alone, ours in zip(*seconds.values(), strict=True)]
    ratio = _timing.ratio(seconds, "with", "without")
    return [*medians, f"{ratio:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gradients")
    parser.add_argument("--network", choices=SHAPES, action="append")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}\n")
    print(f"batch {flags.batch_size}, medians of {flags.rounds} rounds\n")
    head = ["network", "every_steps", "without, ms a step", "with", "ratio", "in the rounds"]
    print(_timing.table(head, []), flush=True)
    for network in flags.network or SHAPES:
        trainer, batches = _make(network, flags.batch_size)
        for every_steps, num_steps in ((EVERY_STEPS, EVERY_STEPS), (1, 10)):
            cells = _compare(trainer, batches[:num_steps], every_steps, flags.rounds)
            print(_timing.row([network, str(every_steps), *cells]), flush=True)


if __name__ == "__main__":
    main()

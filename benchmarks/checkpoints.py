"""What an asynchronous save of a 100 MB state costs the training that goes on meanwhile.

python -m benchmarks checkpoints
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers

STEPS_PER_SAVE = 20
BATCH_SIZE = 256


def _program() -> Any:
    x = layers.data("x", shape=[1000])
    hidden = layers.fc(layers.fc(x, size=4000, act="relu"), size=1000, act="relu")
    loss = layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1]))
    return layers.mean(loss)


def _trainer(checkpoint: ps.CheckpointConfig | None) -> ps.Trainer:
    return ps.Trainer(_program, optax.adam(1e-4), place=jax.devices()[0], checkpoint=checkpoint)


def _seconds(trainer: ps.Trainer, batches: list[Any]) -> float:
    """Return the time of an epoch without the save at the end of training, which waits."""
    ended: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, ps.EndEpoch):
            assert event.metrics > 0  # waits for the device
            ended.append(time.perf_counter())

    start = time.perf_counter()
    trainer.train(batches, on_event)
    return ended[0] - start


def main(rounds: int = 10, num_saves: int = 2) -> None:
    """Print the time per step without and with saves, and what a save costs in steps."""
    rng = np.random.default_rng(0)
    batch = {
        "x": rng.normal(size=(BATCH_SIZE, 1000)).astype(np.float32),
        "y": rng.normal(size=(BATCH_SIZE, 1)).astype(np.float32),
    }
    # The last save of an epoch lies far enough before its end to be over by then.
    batches = [batch] * (STEPS_PER_SAVE * (num_saves + 1) - 1)
    with tempfile.TemporaryDirectory() as folder:
        config = ps.CheckpointConfig(
            directory=Path(folder) / "saved", save_interval_steps=STEPS_PER_SAVE, max_to_keep=2
        )
        plain, saving = _trainer(None), _trainer(config)
        leaves = plain.builder.abstract_leaves
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        _seconds(plain, batches), _seconds(saving, batches)
        costs, steps = [], []
        for _ in range(rounds):
            first, step = saving.global_step, _seconds(plain, batches) / len(batches)
            seconds = _seconds(saving, batches)
            saves = saving.global_step // STEPS_PER_SAVE - first // STEPS_PER_SAVE
            costs.append((seconds - step * len(batches)) / saves / step)
            steps.append(step)
    print(_timing.environment(), "\n")
    print(
        _timing.table(
            ["state", "step", "save every", "time lost per save"],
            [
                [
                    f"{size / 1e6:.0f} MB",
                    f"{statistics.median(steps) * 1e3:.0f} ms",
                    f"{STEPS_PER_SAVE} steps",
                    f"{statistics.median(costs):.2f} steps "
                    f"({min(costs):.2f} to {max(costs):.2f} in {rounds} rounds)",
                ]
            ],
        )
    )


if __name__ == "__main__":
    main()

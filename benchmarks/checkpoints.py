"""What an asynchronous save of a 100 MB state costs the training that goes on meanwhile.

python -m benchmarks checkpoints

Beside it stands what no save can do without: to copy the bytes in memory once, and to write them to
a new file. On CPU the steps use every core, so what a save takes of one they lose.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

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


class _Times(NamedTuple):
    """Seconds on the clock, and of all cores of this process together."""

    clock: float
    cores: float

    @classmethod
    def now(cls) -> _Times:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: _Times) -> _Times:
        return _Times(self.clock - start.clock, self.cores - start.cores)


def _epoch(trainer: ps.Trainer, batches: list[Any]) -> _Times:
    """Return the time of an epoch without the save at the end of training, which waits."""
    ended: list[_Times] = []

    def on_event(event: Any) -> None:
        if isinstance(event, ps.EndEpoch):
            assert event.metrics > 0  # waits for the device
            ended.append(_Times.now())

    start = _Times.now()
    trainer.train(batches, on_event)
    return ended[0].since(start)


class _Floor:
    """Copies so many bytes in memory and writes them to a new file, the newest two of which stay.

    Arguments:
      num_bytes: the size of the state.
    """

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._folder, self._number = folder, 0
        self._source = np.random.default_rng(0).integers(0, 256, num_bytes, dtype=np.uint8)
        self._copy = np.zeros_like(self._source)

    def __call__(self) -> _Times:
        """Do it once."""
        start = _Times.now()
        np.copyto(self._copy, self._source)
        with (self._folder / str(self._number)).open("wb", buffering=0) as file:
            left = self._copy.data
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        (self._folder / str(self._number - 2)).unlink(missing_ok=True)
        self._number += 1
        return _Times.now().since(start)


class _Cost(NamedTuple):
    """What one save cost in a round, beside the floor and the step of that round, in seconds."""

    step: float
    save: _Times
    floor: _Times


def _round(plain: ps.Trainer, saving: ps.Trainer, floor: _Floor, batches: list[Any]) -> _Cost:
    base, first = _epoch(plain, batches), saving.global_step
    more = _epoch(saving, batches).since(base)
    saves = saving.global_step // STEPS_PER_SAVE - first // STEPS_PER_SAVE
    return _Cost(base.clock / len(batches), _Times(more.clock / saves, more.cores / saves), floor())


def _medians(times: list[_Times]) -> str:
    clock, cores = (statistics.median(each) * 1e3 for each in zip(*times, strict=True))
    return f"{clock:.0f} ms, {cores:.0f} ms of a core"


def main(rounds: int = 10, num_saves: int = 4) -> None:
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
        floor = _Floor(Path(folder), size)
        for _ in range(2):  # the second compiles nothing, and finds the memory of the first
            _round(plain, saving, floor, batches)
        costs = [_round(plain, saving, floor, batches) for _ in range(rounds)]
    lost = [each.save.clock / each.step for each in costs]
    print(_timing.environment(), "\n")
    print(
        _timing.table(
            ["state", "step", "save every", "lost per save", "time per save", "copy and write"],
            [
                [
                    f"{size / 1e6:.0f} MB",
                    f"{statistics.median(each.step for each in costs) * 1e3:.0f} ms",
                    f"{STEPS_PER_SAVE} steps",
                    f"{statistics.median(lost):.2f} steps "
                    f"({min(lost):.2f} to {max(lost):.2f} in {rounds} rounds)",
                    _medians([each.save for each in costs]),
                    _medians([each.floor for each in costs]),
                ]
            ],
        )
    )


if __name__ == "__main__":
    main()

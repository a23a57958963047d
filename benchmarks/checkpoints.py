"""What an asynchronous save of a 100 MB state costs the training that runs meanwhile.

python -m benchmarks checkpoints

It is compared with the minimum that any save must do: copy the bytes in memory once, and write them
to a new file. On CPU the steps use every core, so they lose the time that a save takes on one.
"""

from __future__ import annotations

import itertools
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
from penstock._checkpoint._contents import Contents, Position
from penstock._checkpoint._store import Store
from penstock.events import Event

WINDOW = 20  # steps; every second window has a save in it
BATCH_SIZE = 256


def _program() -> Any:
    x = layers.data("x", shape=[1000])
    hidden = layers.fc(layers.fc(x, size=4000, act="relu"), size=1000, act="relu")
    loss = layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1]))
    return layers.mean(loss)


class _Times(NamedTuple):
    """Seconds on the clock, and of all cores of this process together."""

    clock: float
    cores: float

    @classmethod
    def now(cls) -> _Times:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: _Times) -> _Times:
        return _Times(self.clock - start.clock, self.cores - start.cores)


class _Windows:
    """A handler that times windows of steps, alternately around a save and without one.

    A window begins at a step whose loss is read, so that the device has nothing left to do.
    """

    def __init__(self) -> None:
        self.with_save: list[_Times] = []
        self.without: list[_Times] = []
        self._start: _Times | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, ps.EndStep) or (event.step - WINDOW // 2) % WINDOW:
            return
        _ = event.metrics  # waits for the device
        if self._start is not None:
            around_a_save = (event.step // WINDOW) % 2 == 0
            (self.with_save if around_a_save else self.without).append(
                _Times.now().since(self._start)
            )
        self._start = _Times.now()


class _Floor:
    """Copies so many bytes in memory and writes them to a new file, the newest two of which stay.

    Arguments:
      num_bytes: the size of the state.
    """

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._folder, self._number = folder, 0
        self._source = np.random.default_rng(0).integers(0, 256, num_bytes, dtype=np.uint8)
        self._copy = np.zeros_like(self._source)

    def __call__(self, *, copies: bool = True) -> _Times:
        """Do it once."""
        start = _Times.now()
        if copies:
            np.copyto(self._copy, self._source)
        with (self._folder / str(self._number)).open("wb", buffering=0) as file:
            left = self._copy.data
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        (self._folder / str(self._number - 2)).unlink(missing_ok=True)
        self._number += 1
        return _Times.now().since(start)


def _medians(times: list[_Times]) -> str:
    clock, cores = (statistics.median(each) * 1e3 for each in zip(*times, strict=True))
    return f"{clock:.0f} ms, {cores:.0f} ms of a core"


def _measured(folder: Path, num_saves: int) -> tuple[int, _Windows]:
    config = ps.CheckpointConfig(
        directory=folder / "saved", save_interval_steps=2 * WINDOW, max_to_keep=2
    )
    trainer = ps.Trainer(_program, optax.adam(1e-4), place=jax.devices()[0], checkpoint=config)
    rng = np.random.default_rng(0)
    batch = {
        "x": rng.normal(size=(BATCH_SIZE, 1000)).astype(np.float32),
        "y": rng.normal(size=(BATCH_SIZE, 1)).astype(np.float32),
    }
    trainer.train([batch] * (4 * WINDOW), lambda event: None)  # compiles, and takes the memory
    windows = _Windows()
    trainer.train([batch] * (2 * WINDOW * (num_saves + 1)), windows)
    leaves = jax.tree.leaves(trainer.builder.programs.states.abstract_state)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves), windows


def _ratios(folder: Path, floor: _Floor, num_bytes: int, num_saves: int) -> list[float]:
    """Return how long saves of nothing but the store take, to writing and syncing, in turn."""
    store = Store(ps.CheckpointConfig(directory=folder / "alone", max_to_keep=2))
    rng = np.random.default_rng(0)
    # What an optimizer with two moments keeps of eight layers, which does not compress.
    leaves = {
        f"leaf_{n}": rng.integers(0, 2**32, num_bytes // 96, dtype=np.uint32).view(np.float32)
        for n in range(24)
    }
    ratios: list[float] = []
    for step in range(num_saves + 2):
        start = _Times.now()
        store.write(Contents(leaves=leaves, position=Position(global_step=step)))
        ratios.append(_Times.now().since(start).clock / floor(copies=False).clock)
    return ratios[2:]  # the first two take memory and disk that later ones take again


def main(num_saves: int = 40) -> None:
    """Print the time per step, and what a save costs in steps."""
    with tempfile.TemporaryDirectory() as folder:
        size, windows = _measured(Path(folder), num_saves)
        floor = _Floor(Path(folder), size)
        floors = [floor() for _ in range(num_saves // 2)]
        ratios = sorted(_ratios(Path(folder), floor, size, num_saves))
    step = statistics.median(window.clock for window in windows.without) / WINDOW
    # A window with a save lies between two without one: a machine that becomes slower cancels out.
    sides = [
        _Times((a.clock + b.clock) / 2, (a.cores + b.cores) / 2)
        for a, b in itertools.pairwise(windows.without)
    ]
    saves = [window.since(side) for window, side in zip(windows.with_save, sides, strict=False)]
    lost = sorted(save.clock / step for save in saves)
    print(_timing.environment(), "\n")
    print(
        _timing.table(
            ["state", "step", "lost per save", "time per save", "copy and write"],
            [
                [
                    f"{size / 1e6:.0f} MB",
                    f"{step * 1e3:.0f} ms",
                    f"{statistics.median(lost):.2f} steps (middle half of {len(lost)} saves: "
                    f"{lost[len(lost) // 4]:.2f} to {lost[3 * len(lost) // 4]:.2f})",
                    _medians(saves),
                    _medians(floors),
                ]
            ],
        )
    )
    print(
        f"\nA save, with nothing beside it, takes {statistics.median(ratios):.2f} of writing and "
        f"syncing the bytes (middle half of {len(ratios)}: "
        f"{ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f})."
    )


if __name__ == "__main__":
    main()

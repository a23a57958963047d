"""Time per step: a hand-written loop, `Trainer.train` and Keras, on the same batches.

python -m benchmarks trainer_overhead
"""

from __future__ import annotations

import importlib.util
import os
import statistics
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np

from benchmarks import _timing, _workloads

BARE = "by hand"


def _contenders(workload: _workloads.Workload) -> dict[str, Any]:
    batches = workload.batches()
    step, state = _workloads.bare_step(workload)
    holder = [state]

    def by_hand() -> None:
        state = holder[0]
        metrics = None
        for batch in batches:
            state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        holder[0] = state

    contenders: dict[str, Any] = {BARE: by_hand}
    for steps in (1, 10):
        trainer = _workloads.trainer(workload, steps)
        contenders[f"penstock x{steps}"] = _train(trainer, batches)
    if importlib.util.find_spec("keras"):
        x = np.concatenate([b["x"] for b in batches])
        y = np.concatenate([b["y"] for b in batches])
        for steps in (1, 10):
            model = _workloads.keras_model(workload, steps)
            contenders[f"Keras x{steps}"] = _fit(model, x, y)
    return contenders


def _train(trainer: Any, batches: list[Any]) -> Any:
    def ignore(event: Any) -> None:
        """Read nothing."""

    return lambda: trainer.train(batches, ignore)


def _fit(model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    size = _workloads.BATCH_SIZE
    return lambda: model.fit(x, y, batch_size=size, epochs=1, shuffle=False, verbose=0)


def main(rounds: int = 15) -> None:
    """Print the table."""
    print(f"{_timing.environment()}\n")
    rows, header = [], ["batch 64"]
    for workload in _workloads.WORKLOADS:
        seconds = _timing.alternate(
            _contenders(workload), rounds=rounds, units=workload.num_batches
        )
        header = ["batch 64", *seconds]
        cells = [
            f"{statistics.median(each) * 1e6:.0f} us, {_timing.ratio(seconds, name, BARE):.2f}x"
            for name, each in seconds.items()
        ]
        rows.append([workload.name, *cells])
        print("  ".join(rows[-1]), flush=True)
    print("\ntime per step (median), and the median ratio to the hand-written loop\n")
    print(_timing.table(header, rows))


if __name__ == "__main__":
    main()

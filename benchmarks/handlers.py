"""What the library's handlers cost: the conv net with four of them every 50 steps, and without.

python -m benchmarks handlers
"""

from __future__ import annotations

import io
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _timing, _workloads
from penstock import handlers

EVERY_STEPS = 50
NUM_BATCHES = 100


def main(rounds: int = 12) -> None:
    """Print the time per step without and with handlers; both include tests."""
    workload = next(each for each in _workloads.WORKLOADS if "conv" in each.name)
    batches = (workload.batches() * 3)[:NUM_BATCHES]
    test_batches = batches[:1]

    def nothing(event: Any) -> None:
        """Read nothing."""

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = ("loss", "accuracy")
        log = io.StringIO()

        def stock() -> list[Any]:
            return [
                handlers.Progress(names, file=log),
                handlers.CSVLog(root / "log.csv", every_steps=EVERY_STEPS, names=names),
                handlers.TensorBoard(root / "events", every_steps=EVERY_STEPS, names=names),
                handlers.Evaluate(test_batches, every_steps=EVERY_STEPS, names=names),
            ]

        alone, watched = _workloads.trainer(workload, 1), _workloads.trainer(workload, 1)
        made = stock()
        seconds = _timing.alternate(
            {
                "no handler": lambda: alone.train(batches, nothing),
                "four handlers": lambda: watched.train(batches, made),
            },
            rounds=rounds,
            units=NUM_BATCHES,
        )
    print(_timing.environment(), "\n")
    rows = [
        [
            name,
            f"{statistics.median(each) * 1e3:.2f} ms",
            f"{_timing.ratio(seconds, name, 'no handler'):.3f}x",
        ]
        for name, each in seconds.items()
    ]
    title = f"conv net, Progress, CSVLog, TensorBoard, Evaluate (1 batch) every {EVERY_STEPS} steps"
    print(_timing.table([title, "time per step", "ratio"], rows))


if __name__ == "__main__":
    main()

"""What several processes cost: a step, an exchange, and what agreement adds to a step.

    python -m benchmarks processes [--processes 1 2 4 8 16] [--batch 256] [--rounds 3] [--steps 200]

A perceptron 784-256-10 under `penstock launch`, with the same global batch on every number of
processes, in alternating rounds; medians over them. On one machine all processes share its cores,
so the step of one process is the floor. The time above it is spent in all-reduces, through Gloo,
and in context switches. More than two processes run fewer steps, as these take longer: 60 instead
of 200 from 8 on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _timed_run, _timing

SCRIPT = Path(_timed_run.__file__)
FEWEST_STEPS = 60  # three epochs, and the first compiles


def measure(num_processes: int, batch_size: int, num_steps: int) -> list[float]:
    """Return the seconds of a step, of an exchange, and of what agreement adds to a step."""
    words = [sys.executable, "-m", "penstock", "launch", "-n", str(num_processes), "--"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(
        [*words, str(SCRIPT), str(batch_size), str(num_steps)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{num_processes} processes ended with {done.returncode}:{done.stderr}")
    return json.loads(done.stdout.partition("RESULT ")[2].splitlines()[0])


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks processes")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(list(arguments))
    taken: dict[int, list[list[float]]] = {number: [] for number in chosen.processes}
    for _ in range(chosen.rounds):
        for number in chosen.processes:
            num_steps = min(chosen.steps, max(FEWEST_STEPS, 2 * chosen.steps // number))
            taken[number].append(measure(number, chosen.batch, num_steps))
            print(f"{number} processes: {1e3 * taken[number][-1][0]:.1f} ms", file=sys.stderr)
    print(_timing.environment())
    print()
    medians = {
        number: [statistics.median(column) for column in zip(*rows, strict=True)]
        for number, rows in taken.items()
    }
    floor = medians[chosen.processes[0]][0]
    rows = [
        [
            str(number),
            f"{1e3 * step:.2f}",
            f"{step / floor:.2f}",
            f"{1 - floor / step:.0%}" if step > floor else "-",
            f"{1e6 * exchange:.0f}",
            f"{1e6 * agreement:.2f}",
            f"{agreement / step:.3%}",
        ]
        for number, (step, exchange, agreement) in medians.items()
    ]
    header = [
        *("processes", "ms a step", "to one process", "share of reducing and switching"),
        *("us an exchange", "us of agreement a step", "of the step"),
    ]
    print(_timing.table(header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])

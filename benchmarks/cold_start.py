"""From a cold process to the end of the first step: import, build, compile and run.

Each contender runs in its own process, alternately, with the conv net of the trainer benchmark.

    python -m benchmarks cold_start
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import _timing

PHASES = ["import", "build and initialise", "compile and first step", "total"]


def by_hand(mark: Callable[[str], None]) -> None:
    """Run a hand-written flax and optax step once."""
    import flax.linen  # noqa: F401
    import jax
    import optax  # noqa: F401

    mark(PHASES[0])
    from benchmarks import _workloads

    workload = _workloads.WORKLOADS[2]
    batch = workload.batches()[0]
    mark("")
    step, state = _workloads.bare_step(workload)
    jax.block_until_ready(state)
    mark(PHASES[1])
    jax.block_until_ready(step(state, batch))
    mark(PHASES[2])


def penstock(mark: Callable[[str], None]) -> None:
    """Train one batch with a Trainer."""
    # Names of penstock load when they are first used, and JAX with them.
    import optax  # noqa: F401

    from penstock import Trainer, layers  # noqa: F401

    mark(PHASES[0])
    from benchmarks import _workloads

    workload = _workloads.WORKLOADS[2]
    batch = workload.batches()[0]
    mark("")
    trainer = _workloads.trainer(workload, 1)
    mark(PHASES[1])
    trainer.train([batch])
    mark(PHASES[2])


def keras(mark: Callable[[str], None]) -> None:
    """Fit one batch with Keras on the JAX backend."""
    import keras  # noqa: F401

    mark(PHASES[0])
    from benchmarks import _workloads

    workload = _workloads.WORKLOADS[2]
    batch = workload.batches()[0]
    mark("")
    model = _workloads.keras_model(workload, 1)
    mark(PHASES[1])
    model.fit(batch["x"], batch["y"], batch_size=_workloads.BATCH_SIZE, epochs=1, verbose=0)
    mark(PHASES[2])


CONTENDERS = {"by hand": by_hand, "penstock": penstock, "Keras": keras}


def measure(name: str) -> dict[str, float]:
    """Run a contender in this process; return the seconds of each phase."""
    seconds: dict[str, float] = {}
    last = [time.perf_counter()]

    def mark(phase: str) -> None:
        """Note the time since the last mark; a nameless phase (making data) does not count."""
        now = time.perf_counter()
        if phase:
            seconds[phase] = now - last[0]
        last[0] = time.perf_counter()

    CONTENDERS[name](mark)
    return {**seconds, "total": sum(seconds.values())}


def _measured_apart(name: str) -> dict[str, float]:
    code = f"from benchmarks import cold_start as c; print(c.json.dumps(c.measure({name!r})))"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(rounds: int = 5) -> None:
    """Print the table."""
    names = [n for n in CONTENDERS if n != "Keras" or importlib.util.find_spec("keras")]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            measured = _measured_apart(name)
            if number:  # the first round reads the libraries from disk
                results[name].append(measured)
    rows = [
        [phase, *(f"{statistics.median(r[phase] for r in results[n]):.2f} s" for n in names)]
        for phase in PHASES
    ]
    print(f"{_timing.environment()}\n\nconv net, batch 64, median of {rounds} processes\n")
    print(_timing.table(["phase", *names], rows))


if __name__ == "__main__":
    main()

"""Samples per second from memory: `readers.arrays` against plain numpy, Grain and torch.

    python -m benchmarks readers_memory

60,000 images of 28x28 bytes and their labels, shuffled. The baseline is numpy alone: one
permutation per epoch, one fancy index per batch and array. Grain and torch read the same 60,000
sample by sample, so they run fewer rounds. The table has wall-clock and processor time. Then the
resident memory of the process is sampled over one long epoch: it must stay flat.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _timing
from penstock import readers

NUM_SAMPLES = 60_000
NUM_SLOW_ROUNDS = 3  # with what works sample by sample: seconds an epoch
BARE = "numpy"


def _columns(num_samples: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_samples, 28, 28), dtype=np.uint8)
    return {"image": images, "label": rng.integers(0, 10, num_samples, dtype=np.int32)}


def _by_numpy(columns: dict[str, np.ndarray], batch_size: int) -> Callable[[], None]:
    image, label = columns["image"], columns["label"]
    epochs = iter(range(10**9))

    def run() -> None:
        batch = None  # kept while the next one is made, as in any loop over batches
        order = np.random.default_rng((0, next(epochs))).permutation(len(label))
        for start in range(0, len(label), batch_size):
            rows = order[start : start + batch_size]
            batch = {"image": image[rows], "label": label[rows]}
        del batch

    return run


def _drain(reader: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in reader:
            pass

    return run


def _by_grain(columns: dict[str, np.ndarray], batch_size: int) -> Any:
    import grain

    class Source:
        def __len__(self) -> int:
            return len(columns["label"])

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"image": columns["image"][index], "label": columns["label"][index]}

    return grain.MapDataset.source(Source()).shuffle(seed=0).batch(batch_size)


def _by_torch(columns: dict[str, np.ndarray], batch_size: int) -> Any:
    import torch

    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, columns.values()))
    return torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)


def cpu_seconds(
    contenders: dict[str, Callable[[], None]],
) -> tuple[dict[str, Callable[[], None]], dict[str, list[float]]]:
    """Return contenders that record the processor seconds of each call, and those records.

    On a machine with other load they say more than the wall clock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}

    def noted(name: str, run: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)

        return call

    return {name: noted(name, run) for name, run in contenders.items()}, seconds


def _row(
    name: str, contenders: dict[str, Callable[[], None]], units: int, rounds: int
) -> list[str]:
    contenders, cpu = cpu_seconds(contenders)
    seconds = _timing.alternate(contenders, rounds=rounds, units=units)
    cells = []
    for contender, each in seconds.items():
        speed = 1 / _timing.ratio(seconds, contender, BARE)
        by_cpu = 1 / _timing.ratio(cpu, contender, BARE)
        rate = f"{1e-6 / statistics.median(each):.2f} M/s"
        cells.append(f"{contender} {rate}, {speed:.2f}x ({by_cpu:.2f}x by CPU time)")
    return [name, "; ".join(cells)]


def resident_bytes() -> int:
    """Return this process's resident memory now; the peak would hide what comes and goes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def memory_over(batches: Iterable[Any], *, every: int) -> str:
    """Read batches to the end; return the range and slope of the resident memory meanwhile.

    It is sampled every `every` batches, after a first tenth in which buffers fill.
    """
    if not Path("/proc/self/status").exists():
        return "not measured: it needs Linux's /proc"
    samples = [resident_bytes() for number, _ in enumerate(batches) if number % every == 0]
    kept = np.asarray(samples[len(samples) // 10 :]) / 2**20
    slope = np.polyfit(np.arange(len(kept)) * every / 1000, kept, 1)[0]
    return (
        f"{kept.min():.1f} to {kept.max():.1f} MiB in {len(kept)} samples, "
        f"slope {slope * 1024:+.1f} KiB per 1,000 batches"
    )


def _memory_over_an_epoch() -> list[str]:
    """Return what one reader takes while it yields 100,000 batches."""
    columns = {"x": np.ones((6_400_000, 8), np.uint8)}
    reader = readers.buffered(readers.arrays(columns, 64, shuffle=True), 4)
    title = f"resident memory over one epoch of {len(reader):,} batches"
    return [title, memory_over(reader(), every=100)]


def main(rounds: int = 15) -> None:
    """Print the table."""
    print(f"{os.cpu_count()} cores, numpy {np.__version__}\n")
    whole = _columns(NUM_SAMPLES)
    rows = []
    for batch_size in (64, 256, 1024):
        contenders = {
            BARE: _by_numpy(whole, batch_size),
            "arrays": _drain(readers.arrays(whole, batch_size, shuffle=True)),
            "buffered arrays": _drain(
                readers.buffered(readers.arrays(whole, batch_size, shuffle=True), 2)
            ),
        }
        rows.append(_row(f"batch {batch_size}, shuffled", contenders, NUM_SAMPLES, rounds))
        print("  ".join(rows[-1]), flush=True)
    contenders = {
        BARE: _by_numpy(whole, 64),
        "arrays": _drain(readers.arrays(whole, 64, shuffle=True)),
    }
    if importlib.util.find_spec("grain"):
        contenders["Grain"] = _drain(_by_grain(whole, 64))
    if importlib.util.find_spec("torch"):
        contenders["torch"] = _drain(_by_torch(whole, 64))
    num_rounds = min(rounds, NUM_SLOW_ROUNDS)
    title = f"batch 64, shuffled, {num_rounds} rounds as Grain and torch take seconds each"
    rows.append(_row(title, contenders, NUM_SAMPLES, num_rounds))
    print("  ".join(rows[-1]), flush=True)
    rows.append(_memory_over_an_epoch())
    print("  ".join(rows[-1]), flush=True)
    print(f"\nsamples per second (median), and the median speed relative to {BARE}\n")
    print(_timing.table(["reader", "result"], rows))


if __name__ == "__main__":
    main()

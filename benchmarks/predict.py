"""What `predict` costs beside the bare jitted function, over a million rows, and its memory.

python -m benchmarks predict
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator

import jax
import numpy as np

import penstock as ps
from benchmarks import _timing
from penstock import layers, readers

NUM_ROWS = 1_000_000
NUM_FEATURES = 64
BATCH_SIZE = 8192


def program() -> jax.Array:
    """Return class probabilities [B, 10] of a network of two hidden layers."""
    hidden = layers.data("x", shape=[NUM_FEATURES])
    for _ in range(2):
        hidden = layers.fc(hidden, size=128, act="relu")
    return layers.fc(hidden, size=10, act="softmax")


def make_bare(parameters: ps.Parameters) -> Callable[[np.ndarray], jax.Array]:
    """Return the network as a jitted function of plain JAX."""
    weights = [(parameters[f"fc_{n}/w"], parameters[f"fc_{n}/b"]) for n in range(3)]

    @jax.jit
    def run(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for w, b in weights[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = weights[-1]
        return jax.nn.softmax(x @ w + b)

    placed = jax.device_put(weights)
    return lambda x: run(placed, x)


def main(rounds: int = 15) -> None:
    """Print rows a second of `predict` and of the bare function, and how memory grows."""
    inferencer = make_inferencer()
    peaks = measure_memory(inferencer)
    # Rows are generated once: a reader that decodes would hide what predict costs.
    rows = np.random.default_rng(0).normal(size=(NUM_ROWS, NUM_FEATURES)).astype(np.float32)
    ids = np.arange(NUM_ROWS)
    bare = make_bare(inferencer.parameters)
    reader = readers.arrays({"x": rows, "id": ids}, BATCH_SIZE)

    def run_bare() -> int:
        last, total = None, 0
        for first in range(0, NUM_ROWS, BATCH_SIZE):
            # As a user writes it who knows JAX: the next batch runs while one is fetched.
            answer = bare(rows[first : first + BATCH_SIZE])
            total += 0 if last is None else len(np.asarray(last))
            last = answer
        return total + len(np.asarray(last))

    def run_predict() -> int:
        return sum(len(batch) for batch in inferencer.predict(reader))

    def run_with_ids() -> int:
        return sum(len(batch["id"]) for batch in inferencer.predict(reader, keep=["id"]))

    contenders = {"bare": run_bare, "predict": run_predict, "predict, ids beside": run_with_ids}
    assert {run() for run in contenders.values()} == {NUM_ROWS}
    seconds = _timing.alternate(contenders, rounds=rounds, units=NUM_ROWS)
    print(_timing.environment(), "\n")
    # The best round of each: others on the machine slow whichever runs with them.
    best = {name: min(each) for name, each in seconds.items()}
    table = [
        [name, f"{1e-3 / secs:,.0f} k", f"{best['bare'] / secs:.2f}x"]
        for name, secs in best.items()
    ]
    title = f"{NUM_ROWS:,} rows, batches of {BATCH_SIZE}, best of {rounds} rounds"
    print(_timing.table([title, "rows/s", "rate"], table), "\n")
    print("peak memory after 5 % and 100 % of the rows: {:.0f} and {:.0f} MiB".format(*peaks))


def make_inferencer() -> ps.Inferencer:
    """Return the network with initial values."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = ps.Trainer(lambda: layers.mean(program()))
        trainer.save_params(folder)
        return ps.Inferencer(program, folder)


def measure_memory(inferencer: ps.Inferencer) -> list[float]:
    """Return the peak of memory, MiB, after a twentieth of the rows and after all.

    They are made as they are read.
    """
    random = np.random.default_rng(0)

    def reader() -> Iterator[dict[str, np.ndarray]]:
        for _ in range(NUM_ROWS // BATCH_SIZE):
            yield {"x": random.normal(size=(BATCH_SIZE, NUM_FEATURES)).astype(np.float32)}

    return [
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        for number, _ in enumerate(inferencer.predict(reader))
        if number in (NUM_ROWS // BATCH_SIZE // 20, NUM_ROWS // BATCH_SIZE - 1)
    ]


if __name__ == "__main__":
    main()

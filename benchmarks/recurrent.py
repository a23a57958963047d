"""A training step of an LSTM and of a GRU against torch, Keras on JAX and a bare flax network.

    python -m benchmarks recurrent --torch_python PYTHON
    python -m benchmarks recurrent --layer lstm --rounds 31

256 units at batch 64 over 100 words of 256 features, plain SGD, float32; the loss is the mean
square of all hidden states. penstock's is `dynamic_lstm` after the `fc` that projects its words.
All sequences have full length, but their lengths are fed. The contenders alternate; ratios are per
round. torch runs in its own interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from benchmarks._networks import OtherInterpreter
from penstock import layers

BATCH_SIZE, NUM_STEPS, SIZE = 64, 100, 256
KINDS = ("lstm", "lstm with peepholes", "gru")
RATE = 1e-3


def _mean_square(states: ps.Sequence) -> jax.Array:
    return layers.mean(states * states)


def _program(kind: str) -> jax.Array:
    words = layers.data("words", [SIZE], lod_level=1, buckets=[NUM_STEPS])
    if kind == "gru":
        projected = layers.fc(words, 3 * SIZE)
        return _mean_square(layers.dynamic_gru(projected, SIZE))
    projected = layers.fc(words, 4 * SIZE)
    hidden, _ = layers.dynamic_lstm(projected, 4 * SIZE, use_peepholes=kind != "lstm")
    return _mean_square(hidden)


def _penstock(kind: str, words: np.ndarray) -> Callable[[], object]:
    builder = ps.ProgramBuilder(lambda: _program(kind), optax.sgd(RATE), place=jax.devices()[:1])
    batch = {"words": words, "words_length": np.full(BATCH_SIZE, NUM_STEPS, np.int32)}
    holder = [builder.init()]

    def train() -> None:
        holder[0], values = builder.train(holder[0], batch)
        jax.block_until_ready((holder[0], values))

    return train


def _flax(kind: str, words: np.ndarray) -> Callable[[], object]:
    import flax.linen as nn

    network = nn.RNN(nn.GRUCell(SIZE) if kind == "gru" else nn.OptimizedLSTMCell(SIZE))
    holder = [network.init(jax.random.key(0), words)]

    def loss_of(params: Any, words: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(jnp.asarray(network.apply(params, words))))

    def update(params: Any, words: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, words)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), loss

    step = jax.jit(update, donate_argnums=0)

    def train() -> None:
        holder[0], loss = step(holder[0], words)
        jax.block_until_ready((holder[0], loss))

    return train


def _keras(kind: str, words: np.ndarray) -> Callable[[], object]:
    import keras

    make = keras.layers.GRU if kind == "gru" else keras.layers.LSTM
    model = keras.Sequential(
        [keras.layers.Input((NUM_STEPS, SIZE)), make(SIZE, return_sequences=True)]
    )
    model.compile(keras.optimizers.SGD(RATE), "mean_squared_error")
    target = np.zeros((BATCH_SIZE, NUM_STEPS, SIZE), np.float32)
    return lambda: model.train_on_batch(words, target)


def _clock(run: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


def measure(kind: str, *, rounds: int, torch_python: str) -> list[str]:
    """Return a row: medians in milliseconds, then penstock's ratio to each of the others."""
    words = np.random.default_rng(0).normal(size=(BATCH_SIZE, NUM_STEPS, SIZE)).astype(np.float32)
    makers = {"penstock": _penstock, "flax": _flax, "Keras": _keras}
    contenders = {name: _clock(make(kind, words)) for name, make in makers.items()}
    torch = None
    if torch_python:
        asked = ("GRU" if kind == "gru" else "LSTM", BATCH_SIZE, NUM_STEPS, SIZE)
        torch = OtherInterpreter(torch_python, "_torch_recurrent.py", *asked)
        ask = torch.ask
        contenders["torch"] = lambda: ask("train")
    seconds = alternate_clocks(contenders, rounds=rounds)
    if torch is not None:
        torch.close()
    return [kind, *compare(seconds, "penstock", ("flax", "Keras", "torch"))]


def alternate_clocks(
    contenders: dict[str, Callable[[], float]], *, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds that each contender reports for each round, after two warm-up rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds + 2):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            taken = contenders[name]()
            if number >= 2:
                seconds[name].append(taken)
    return seconds


def compare(seconds: dict[str, list[float]], ours: str, others: Sequence[str]) -> list[str]:
    """Return medians in milliseconds and ratios to the others, `-` for contenders not measured."""
    cells = [
        f"{statistics.median(seconds[name]) * 1e3:.4g}" if name in seconds else "-"
        for name in (ours, *others)
    ]
    return cells + [
        f"{_timing.ratio(seconds, ours, name):.2f}" if name in seconds else "-" for name in others
    ]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recurrent")
    parser.add_argument("--layer", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--torch_python", default="", help="an interpreter that has torch")
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}\n")
    rows = []
    for kind in flags.layer:
        rows.append(measure(kind, rounds=flags.rounds, torch_python=flags.torch_python))
        print("  ".join(rows[-1]), flush=True)
    header = ["layer", "penstock, ms", "flax", "Keras", "torch", "to flax", "to Keras", "to torch"]
    print(f"\nmedians of {flags.rounds} rounds, ratios by round\n")
    print(_timing.table(header, rows))


if __name__ == "__main__":
    main()

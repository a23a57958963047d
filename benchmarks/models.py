"""Networks of the model library: a forward pass and a training step, against keras.applications.

    python -m benchmarks models
    python -m benchmarks models --batch_size 16 --model mobilenet_v1_025

Both run on JAX, in float32, on the same images, alternately in one process. Keras runs the compiled
steps of its own `predict` and `fit` over as many batches as penstock's `infer` and `train`.
Networks that keras.applications does not have are measured alone. `resnet_v1_50` is compared with
Keras's ResNet50, which has its strides elsewhere and computes 1.11 times as much; `resnet_v2_50`
and the others are the same networks. The time to the first step includes everything from building
the network, but no imports. All networks together take ten minutes on two idle cores, most of it
compilation; rows are printed as they are measured.
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
import numpy as np

from benchmarks import _networks, _timing
from benchmarks._networks import Network

NETWORKS = (
    Network(name="lenet", size=28, num_channels=1, repeats=20),
    Network(name="cifarnet", size=32, repeats=20),
    Network(
        name="mobilenet_v1_025",
        size=224,
        repeats=10,
        keras="MobileNet",
        keras_options=(("alpha", 0.25),),
    ),
    Network(name="resnet_v1_50", size=224, keras="ResNet50"),
    Network(name="resnet_v2_50", size=224, keras="ResNet50V2"),
    Network(name="inception_v3", size=299, keras="InceptionV3"),
)


def _batch(network: Network, batch_size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = [batch_size, network.size, network.size, network.num_channels]
    image = rng.uniform(-1, 1, shape).astype(np.float32)
    return {"image": image, "label": rng.integers(0, 1000, [batch_size, 1]).astype(np.int32)}


def _ours(network: Network, batch: dict[str, np.ndarray]) -> dict[str, Any]:
    builder = _networks.make_builder(network)
    holder = [builder.init()]

    def forward() -> None:
        for _ in range(network.repeats):
            builder.infer(holder[0], {"image": batch["image"]})

    def train(num_steps: int = network.repeats) -> None:
        state, metrics = holder[0], None
        for _ in range(num_steps):
            state, metrics = builder.train(state, batch)
        holder[0] = state
        jax.block_until_ready((state, metrics))

    return {"forward": forward, "train": train}


def _theirs(network: Network, batch: dict[str, np.ndarray]) -> dict[str, Any]:
    model = _networks.make_keras(network)
    images = np.concatenate([batch["image"]] * network.repeats)
    labels = np.concatenate([batch["label"]] * network.repeats)
    size = len(batch["image"])

    def forward() -> None:
        model.predict(images, batch_size=size, verbose=0)

    def train(num_steps: int = network.repeats) -> None:
        part = slice(num_steps * size)
        model.fit(images[part], labels[part], batch_size=size, shuffle=False, verbose=0)

    return {"forward": forward, "train": train}


def _first_step(make: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], float]:
    start = time.perf_counter()
    made = make()
    made["train"](1)
    return made, time.perf_counter() - start


def measure(network: Network, *, batch_size: int, rounds: int) -> list[list[str]]:
    """Return the rows of one network: time per image, and the ratio to Keras's."""
    batch = _batch(network, batch_size)
    sides = {"penstock": lambda: _ours(network, batch)}
    if network.keras:
        sides["Keras"] = lambda: _theirs(network, batch)
    made, first = {}, {}
    for side, make in sides.items():
        made[side], first[side] = _first_step(make)
    rows = []
    for kind in ("forward", "train"):
        contenders = {side: each[kind] for side, each in made.items()}
        seconds = _timing.alternate(contenders, rounds=rounds, units=network.repeats * batch_size)
        times = [f"{statistics.median(each) * 1e3:.3g}" for each in seconds.values()]
        ratio = f"{_timing.ratio(seconds, 'penstock', 'Keras'):.2f}" if len(times) == 2 else "-"
        cold = " / ".join(f"{each:.1f}" for each in first.values()) if kind == "train" else ""
        rows.append([network.name, kind, *times, *["-"] * (2 - len(times)), ratio, cold])
        print("  ".join(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks models")
    names = [network.name for network in NETWORKS]
    parser.add_argument("--model", nargs="*", default=names, choices=names)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}\n")
    rows = []
    for network in NETWORKS:
        if network.name in flags.model:
            rows += measure(network, batch_size=flags.batch_size, rounds=flags.rounds)
    header = ["network", "what", "penstock, ms an image", "Keras", "ratio", "s to the first step"]
    print(f"\nbatch {flags.batch_size}; medians, ratios by round\n")
    print(_timing.table(header, rows))


if __name__ == "__main__":
    main()

"""Print the milliseconds of a step of small networks, and the seconds of a large Trainer, as JSON.

Run by `against_checkout` with another version of penstock on the path, so it uses public names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, models

RNG = np.random.default_rng(0)


def classify(hidden: Any) -> Any:
    label = layers.data("label", [1], "int32")
    return layers.mean(layers.cross_entropy(layers.fc(hidden, 10, act="softmax"), label))


def regression() -> Any:
    error = layers.fc(layers.data("x", [13]), 1) - layers.data("y", [1])
    return layers.mean(error**2)


def perceptron() -> Any:
    return classify(layers.fc(layers.data("x", [784]), 256, act="relu"))


def conv_net() -> Any:
    hidden = layers.data("x", [28, 28, 1])
    for _ in range(2):
        hidden = layers.batch_norm(layers.conv2d(hidden, num_filters=16, filter_size=3), act="relu")
    return classify(layers.pool2d(hidden, 2, pool_stride=2))


def embed() -> Any:
    return layers.embedding(layers.data("x", [1], "int32", lod_level=1), [1000, 64])


def lstm() -> Any:
    hidden, _ = layers.dynamic_lstm(layers.fc(embed(), 256), 256)
    return classify(layers.sequence_pool(hidden, "max"))


def transformer() -> Any:
    hidden = layers.transformer_encoder(embed(), num_layers=2, num_heads=4, ffn_size=128)
    return classify(layers.sequence_pool(hidden, "average"))


def library(name: str) -> Callable[[], Any]:
    return models.classifier(name, 10, image_size=64).train_program


def images(number: int, *shape: int) -> np.ndarray:
    return RNG.normal(size=(number, *shape)).astype(np.float32)


def labels(number: int) -> np.ndarray:
    return RNG.integers(0, 10, (number, 1)).astype(np.int32)


def sentences(number: int) -> list[np.ndarray]:
    return [RNG.integers(0, 1000, (30, 1)).astype(np.int32) for _ in range(number)]


NETWORKS: dict[str, tuple[Callable[[], Any], dict[str, Any], int]] = {
    "regression": (regression, {"x": images(20, 13), "y": images(20, 1)}, 3000),
    "perceptron": (perceptron, {"x": images(64, 784), "label": labels(64)}, 600),
    "conv net": (conv_net, {"x": images(64, 28, 28, 1), "label": labels(64)}, 60),
    "LSTM": (lstm, {"x": sentences(32), "label": labels(32)}, 40),
    "transformer": (transformer, {"x": sentences(32), "label": labels(32)}, 60),
    "resnet_v1_50": (
        library("resnet_v1_50"),
        {"image": images(8, 64, 64, 3), "label": labels(8)},
        6,
    ),
}


def make_trainer(program: Callable[[], Any]) -> ps.Trainer:
    return ps.Trainer(program, optax.sgd(0.01), place=jax.devices()[0])


def measure() -> dict[str, float]:
    """Return the best of three runs of each network."""
    found = {}
    for name, (program, batch, num_steps) in NETWORKS.items():
        trainer = make_trainer(program)
        trainer.train([batch] * 3)
        runs = []
        for _ in range(3):
            start = time.perf_counter()
            trainer.train([batch] * num_steps)
            list(trainer.parameters.values())  # waits
            runs.append((time.perf_counter() - start) / num_steps)
        found[f"{name}, ms a step"] = 1e3 * min(runs)
    start = time.perf_counter()
    make_trainer(library("resnet_v1_152"))
    return {**found, "Trainer() of resnet_v1_152, s": time.perf_counter() - start}


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    print(json.dumps(measure()))

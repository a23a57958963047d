"""What devices tell each other in a training step: the collectives in the compiled text.

For the CPU with 8 devices, and for a TPU v5e of 4x4 chips, which need not be here if libtpu is
installed (`pip install "penstock[tpu]"`).

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks collectives
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers, models
from penstock.program_builder import describe_devices

TOPOLOGY, BATCH_SIZE = "v5e:4x4", 64


def classify(hidden: jax.Array) -> jax.Array:
    """Return the loss of a classification."""
    label = layers.data("label", [1], "int32")
    return layers.mean(layers.cross_entropy(layers.fc(hidden, 10, act="softmax"), label))


def perceptron() -> jax.Array:
    """Return the loss of 784-256-10 with dropout."""
    hidden = layers.fc(layers.data("x", [784]), 256, act="relu")
    return classify(layers.dropout(hidden, 0.5))


def convolutions(num_norms: int, group_size: int | None = None) -> Callable[[], jax.Array]:
    """Return a program of two convolutions, some with a batch norm."""

    def program() -> jax.Array:
        hidden = layers.data("image", [28, 28, 1])
        for number in range(2):
            hidden = layers.conv2d(hidden, num_filters=16, filter_size=3)
            if number < num_norms:
                hidden = layers.batch_norm(hidden, act="relu", group_size=group_size)
        return classify(layers.pool2d(hidden, 2, pool_stride=2))

    return program


def lstm() -> jax.Array:
    """Return the loss of an LSTM over words."""
    words = layers.embedding(layers.data("x", [1], "int32", lod_level=1), [1000, 64])
    hidden, _ = layers.dynamic_lstm(layers.fc(words, 4 * 64), 4 * 64)
    return classify(layers.sequence_pool(hidden, "max"))


def transformer() -> jax.Array:
    """Return the loss of two transformer blocks over words."""
    words = layers.embedding(layers.data("x", [1], "int32", lod_level=1), [1000, 64])
    hidden = layers.transformer_encoder(words, num_layers=2, num_heads=4, ffn_size=128)
    return classify(layers.sequence_pool(hidden, "average"))


def library(name: str, image_size: int) -> Callable[[], Any]:
    """Return the train program of a network of the library."""
    return models.classifier(name, 10, image_size=image_size).train_program


NETWORKS: dict[str, Callable[[], Any]] = {
    "perceptron": perceptron,
    "2 convolutions": convolutions(0),
    "2 convolutions, 2 batch norms": convolutions(2),
    "the same, group_size=4": convolutions(2, 4),
    "LSTM": lstm,
    "transformer, 2 blocks": transformer,
    "vgg_a (no norm)": library("vgg_a", 64),
    "resnet_cifar10_8 (9 norms)": library("resnet_cifar10_8", 32),
    "mobilenet_v1_025 (27 norms)": library("mobilenet_v1_025", 64),
    "resnet_v1_50 (53 norms)": library("resnet_v1_50", 64),
}


def count(program: Callable[[], Any], place: Any) -> str:
    """Return the kinds of collectives of a step, and how many of each there are."""
    precision = "float32" if isinstance(place, list) else "bfloat16"
    builder = ps.ProgramBuilder(program, optax.sgd(0.1, 0.9), place=place, precision=precision)
    found = ps.plan(builder, batch_size=BATCH_SIZE).collectives or ()
    return ", ".join(f"{each.number} {each.kind}" for each in found) or "none"


def main() -> None:
    """Print the table."""
    if len(jax.devices()) < 8:
        sys.exit("collectives got fewer than 8 devices, expected XLA_FLAGS as its docstring says.")
    print(_timing.environment(), flush=True)
    places: dict[str, Any] = {"8 CPU devices": jax.devices()[:8]}
    if importlib.util.find_spec("libtpu"):
        devices = describe_devices(TOPOLOGY)
        places[f"TPU {TOPOLOGY}"] = jax.sharding.Mesh(np.array(devices), ("data",))
    print(_timing.row(["a step, batch of 64", *places]))
    print("|" + "---|" * (1 + len(places)))
    for name, program in NETWORKS.items():
        print(
            _timing.row([name, *(count(program, place) for place in places.values())]), flush=True
        )

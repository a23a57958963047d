"""The memory that `ps.plan` predicts for a step on one CPU device, and what the step takes.

python -m benchmarks memory

Each network runs in a process of its own. What it takes is how far the resident set of the process
rises above what it was between two steps, where state and batch lie in it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers, models

NETWORKS = {"mlp": 4096, "lenet": 512, "resnet_v1_50": 16, "mobilenet_v2": 32, "transformer": 32}
"""Names and batch sizes."""


def _mlp() -> object:
    x = layers.data("x", shape=[1024])
    for _ in range(3):
        x = layers.fc(x, size=2048, act="relu")
    return layers.mean(layers.fc(x, size=1))


def _transformer() -> object:
    x = layers.data("x", shape=[128, 256])
    return layers.mean(layers.transformer_encoder(x, 6, 8, 1024))


def _measure(name: str) -> dict[str, int]:
    """Return the bytes predicted and taken by a step of a network."""
    own = {"mlp": _mlp, "transformer": _transformer}
    function: Any = own.get(name) or models.classifier(name, 1000).train_program
    builder = ps.ProgramBuilder(function, optax.adam(1e-3), place=jax.devices()[:1])
    size, random = NETWORKS[name], np.random.default_rng(0)
    feed: dict[str, Any] = {
        key: random.integers(0, 9, (size, *spec.shape)).astype(spec.dtype)
        for key, spec in builder.feed_specs.items()
    }
    planned = ps.plan(builder, batch_size=size)
    state, _ = builder.train(builder.init(), feed)
    state, loss = builder.train(state, feed)
    jax.block_until_ready((state, loss))
    # What a step has given back may still lie with the allocator.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _read("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        state, loss = builder.train(state, feed)
        jax.block_until_ready((state, loss))
    sizes = planned.memory_bytes
    arguments = sizes["parameters"] + sizes["optimizer"] + sizes["batch"]
    return {"predicted": planned.total_bytes, "taken": _read("VmHWM") - before + arguments}


def _read(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024


def main(arguments: Sequence[str] = ()) -> None:
    """Print a row for each network, or what one takes as JSON."""
    parser = argparse.ArgumentParser("python -m benchmarks memory")
    parser.add_argument("--network", choices=NETWORKS, help="in this process")
    name = parser.parse_args(arguments).network
    if name is not None:
        print(json.dumps(_measure(name)))
        return
    print(_timing.environment() + "\n")
    rows = []
    for name, size in NETWORKS.items():
        command = [sys.executable, "-m", "benchmarks", "memory", "--network", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        megabytes = [f"{found[kind] / 2**20:.0f}" for kind in ("predicted", "taken")]
        rows.append([name, str(size), *megabytes, f"{found['taken'] / found['predicted']:.2f}"])
    print(_timing.table(["network", "batch", "predicted MiB", "taken MiB", "ratio"], rows))

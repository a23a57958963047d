"""Where a network's step spends its time on the CPU: the ten most expensive kinds of operations.

    python -m benchmarks top_operations --network resnet50
    python -m benchmarks top_operations --network vgg_16 --mode infer --batch_size 1

The table has milliseconds of processor time per step from JAX's profiler, summed over threads, by
XLA operation and the JAX operation that it comes from. A fusion of several counts for the last one.
"""

from __future__ import annotations

import argparse
import collections
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import _networks, _timing
from benchmarks._networks import Network
from benchmarks.cpu_networks import NETWORKS

_OPERATION = re.compile(r"%?([\w.\-]+) = (?:\([^=]*?\)|\S+) ([\w\-]+)\([^\n]*", re.M)
# The operations in one have events of their own.
_AROUND_OTHERS = ("while", "call", "conditional")


def _run(network: Network, mode: str, batch_size: int) -> tuple[Callable[[], object], str]:
    """Return what runs one step, and the program's compiled text."""
    builder = _networks.make_builder(network)
    rng = np.random.default_rng(0)
    shape = (batch_size, network.size, network.size, network.num_channels)
    image, label = network.input_names
    feed: dict[str, Any] = {image: rng.uniform(-1, 1, shape).astype(np.float32)}
    labels = rng.integers(0, 10, (batch_size, 1)).astype(np.int32)
    holder = [builder.init()]

    def run() -> None:
        if mode == "infer":
            builder.infer(holder[0], feed)
        else:
            holder[0], values = builder.train(holder[0], {**feed, label: labels})
            jax.block_until_ready((holder[0], values))

    return run, builder.inspect(mode, batch_size=batch_size).compiled_text


def _profile(run: Callable[[], object], steps: int) -> collections.Counter[str]:
    """Return the milliseconds a step of each operation, by its name in the compiled text."""
    spent: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    name = dict(event.stats).get("hlo_op")
                    if name is not None and not str(name).startswith(_AROUND_OTHERS):
                        spent[str(name)] += event.duration_ns / 1e6 / steps
    return spent


def _name_kinds(text: str) -> dict[str, str]:
    """Return for each operation of a compiled text what it is."""
    kinds = {}
    for found in _OPERATION.finditer(text):
        origin = re.search(r'op_name="([^"]*)"', found[0])
        path = origin[1] if origin else ""
        last = path.rpartition("/")[2]
        # A gradient's operations have the name of what they are the gradient of.
        where = " of a gradient" if "transpose(" in path else ""
        library = "YNNPACK " if "ynn" in found[1] else ""
        kinds[found[1]] = f"{library}{found[2]}: {last or 'copies and the like'}{where}"
    return kinds


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks top_operations")
    names = [network.name for network in NETWORKS]
    parser.add_argument("--network", nargs="*", default=names, choices=names)
    parser.add_argument("--mode", choices=("train", "infer"), default="train")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    flags = parser.parse_args(list(arguments))
    print(_timing.environment())
    for network in NETWORKS:
        if network.name not in flags.network:
            continue
        run, text = _run(network, flags.mode, flags.batch_size)
        run()
        seconds = []
        for _ in range(flags.steps):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        kinds, sums = _name_kinds(text), collections.Counter[str]()
        for name, spent in _profile(run, flags.steps).items():
            sums[kinds.get(name, name)] += spent
        wall, total = statistics.median(seconds) * 1e3, sum(sums.values())
        print(f"\n{network.name}, {flags.mode}, batch {flags.batch_size}: {wall:.4g} ms a step\n")
        rows = [
            [kind, f"{spent:.4g}", f"{100 * spent / total:.0f} %"]
            for kind, spent in sums.most_common(10)
        ]
        print(_timing.table(["operation", "ms of processor time", "share"], rows), flush=True)


if __name__ == "__main__":
    main()

"""Requests a second of `penstock serve` against the bare function, and servers without its batches.

python -m benchmarks serving [--secs=5] [--hidden=2048 | --network=mobilenet_v2] [--split_cores]

The model is a perceptron of three layers, or a network of the library at 160 x 160 pixels. The
clients are a process of their own and share the machine with the servers; the bare function has it
alone, and gets as many rows at a time as there are clients. With --split_cores the servers and the
function have one half of the cores, and the clients the other. `starlette` calls the function for
each request. LitServe reads JSON alone, the others get bytes. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers, models

CLIENTS = (1, 8, 32, 64)
SIZE, IMAGE_SIZE = 784, 160
ROUNDS = 3


def write_model(path: Path, hidden: int, network: str | None) -> ps.InferenceModel:
    """Write the file that all of them serve."""

    def infer_program() -> Any:
        if network is not None:
            image = layers.data("x", shape=[IMAGE_SIZE, IMAGE_SIZE, 3])
            return layers.softmax(models.get(network)(image, 1000)[0])
        x = layers.data("x", shape=[SIZE])
        for _ in range(2):
            x = layers.fc(x, size=hidden, act="relu")
        return layers.fc(x, size=10, act="softmax")

    def train_program() -> Any:
        label = layers.data("label", shape=[1], dtype="int32")
        return layers.mean(layers.cross_entropy(infer_program(), label))

    trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=infer_program)
    trainer.save_inference_model(path)
    return ps.InferenceModel.load(path)


def find_port() -> int:
    """Return a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def run_server(kind: str, file: Path, x: np.ndarray, cores: set[int]) -> Iterator[int]:
    """Run a server until the end of the block; yields its port once it answers for a row."""
    port = find_port()
    words = [f"benchmarks._serving_{kind}", str(file), str(port)]
    if kind == "penstock serve":
        words = ["penstock", "serve", f"model={file}", f"--port={port}", "--linger=0"]
    # A session of its own: LitServe's processes do not end with it.
    with on_cores(cores):
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, start_new_session=True
        )
    end = time.monotonic() + 60
    try:
        while process.poll() is None:
            try:
                load(port, x, 1, 0.1, is_json=kind == "litserve")
                break
            except subprocess.CalledProcessError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def load(
    port: int, x: np.ndarray, clients: int, secs: float, rate: float = 0.0, *, is_json: bool = False
) -> tuple[float, float, float]:
    """Return answers a second, and the median and the 99th percentile of their seconds."""
    tensor = {"name": "x", "shape": [*x.shape], "datatype": "FP32"}
    inputs = [{**tensor, "parameters": {"binary_data_size": x.nbytes}}]
    # Bytes in both directions, as the server beside it has them.
    wanted = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(wanted).encode()
    body = head + x.tobytes()
    if is_json:
        body = head = json.dumps({"inputs": [{**tensor, "data": x.ravel().tolist()}]}).encode()
    words = [port, "/v2/models/model/infer", clients, secs, rate, len(head)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._serving_clients", *map(str, words)],
        input=body,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return tuple(json.loads(done.stdout))


def make_rows(model: ps.InferenceModel, rows: int) -> np.ndarray:
    """Return so many rows."""
    shape = (rows, *model.inputs[0].shape)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def time_function(file: Path, rows: int, secs: float, cores: set[int]) -> float:
    """Return the seconds of a call with so many rows, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.serving", "--function", str(file), str(rows)]
    with on_cores(cores):
        said = subprocess.run([*words, str(secs)], stdout=subprocess.PIPE, check=True)
    return float(said.stdout)


def time_here(file: Path, rows: int, secs: float) -> float:
    """Return the seconds of a call with so many rows."""
    model = ps.InferenceModel.load(file)
    x = make_rows(model, rows)
    model.infer_columns({"x": x})
    seconds, end = [], time.perf_counter() + secs / 4
    while time.perf_counter() < end:
        start = time.perf_counter()
        model.infer_columns({"x": x})
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Have the processes that are started in the block run on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main(arguments: Sequence[str] = ()) -> None:
    """Print throughput and latency by number of clients."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serving")
    parser.add_argument("--secs", type=float, default=5.0)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--network")
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--split_cores", action="store_true")
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    half_way = len(cores) // 2
    parts = (cores[:half_way], cores[half_way:]) if options.split_cores else (cores, cores)
    servers, clients_cores = map(set, parts)
    kinds = ["penstock serve"]
    kinds += [each for each in ("starlette", "litserve") if importlib.util.find_spec(each)]
    rows, half = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.penstock"
        model = write_model(file, options.hidden, options.network)
        x = make_rows(model, 1)
        for clients in options.clients:
            bare: list[float] = []
            found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
            worst = 0.0
            # They alternate, so that other load on the machine meets all of them.
            for _ in range(options.rounds):
                bare.append(clients / time_function(file, clients, options.secs, servers))
                for kind in kinds:
                    with run_server(kind, file, x, servers) as port, on_cores(clients_cores):
                        is_json = kind == "litserve"
                        found[kind].append(load(port, x, clients, options.secs, is_json=is_json))
                        if kind == "penstock serve" and clients == max(options.clients):
                            best = found[kind][-1][0]
                            worst = load(port, x, clients, options.secs, best / 2)[2]
                if clients == max(options.clients):
                    half.append((worst, time_function(file, 1, options.secs, servers)))
            cells = [f"{clients}", f"{statistics.median(bare):,.0f}"]
            for kind in kinds:
                rates = [each[0] for each in found[kind]]
                ratio = statistics.median(r / b for r, b in zip(rates, bare, strict=True))
                _, median, worst = (statistics.median(x) for x in zip(*found[kind], strict=True))
                cells.append(
                    f"{statistics.median(rates):,.0f} ({ratio:.2f}x), "
                    f"{median * 1e3:.1f} / {worst * 1e3:.1f} ms"
                )
            rows.append(cells)
    print(_timing.environment())
    print(f"load of the machine before: {os.getloadavg()[2]:.1f}\n")
    names = [f"{kind}: requests/s (of the function), p50 / p99" for kind in kinds]
    print(_timing.table(["clients", "function: rows/s", *names], rows))
    worst, alone = (statistics.median(each) for each in zip(*half, strict=True))
    ratios = sorted(each / own for each, own in half)
    print(
        f"\nAt half of what {max(options.clients)} clients get p99 is {worst * 1e3:.1f} ms, "
        f"{statistics.median(ratios):.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}) the "
        f"function's own {alone * 1e3:.2f} ms for a row."
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--function"]:
        print(time_here(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    else:
        main(sys.argv[1:])

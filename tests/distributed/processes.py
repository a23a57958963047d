"""Processes of this machine that join each other, started as a launcher starts them.

python -m tests.distributed.processes WHAT: one of them, which prints what it has as JSON. Plain; or
adopt, where JAX has joined them before, and where a reader has processes of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from penstock.distributed import local_launch
from tests import compiling
from tests.source_tree import ROOT


def free_port() -> int:
    """Return a port of this machine at which nobody listens, and which no system gives away."""
    return local_launch.choose_port()


def start(what: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start one process of this module on one CPU device."""
    return start_module("tests.distributed.processes", what, variables=variables)


def start_module(
    name: str, *words: object, variables: Mapping[str, str] = {}, num_devices: int = 1
) -> subprocess.Popen[str]:
    """Start one process of a module on so many CPU devices."""
    own = {"XLA_FLAGS": compiling.xla_flags(num_devices), "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", name, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **own, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def jax_variables(port: int, process_id: int, num_processes: int = 2) -> dict[str, str]:
    """Return the variables that `penstock launch` sets."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(num_processes),
        "JAX_PROCESS_ID": str(process_id),
    }


def finish(started: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Wait for processes; return status, stdout and stderr of each."""
    try:
        outputs = [process.communicate(timeout=180) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        (process.returncode, out, err) for process, (out, err) in zip(started, outputs, strict=True)
    ]


def results(started: list[subprocess.Popen[str]]) -> list[dict]:
    """Wait for processes that all end well; return what each printed."""
    outputs = []
    for status, out, err in finish(started):
        assert status == 0, err
        line = next(line for line in out.splitlines() if line.startswith("RESULT "))
        outputs.append(json.loads(line.removeprefix("RESULT ")) | {"said": err, "printed": out})
    return outputs


def run_group(count: int, devices_each: int, name: str, *words: object) -> list[dict]:
    """Run a module in processes that find each other; return what each printed."""
    return results(start_group(count, devices_each, name, *words))


def start_group(
    count: int, devices_each: int, name: str, *words: object
) -> list[subprocess.Popen[str]]:
    """Start a module in so many processes that find each other, with so many devices each."""
    port, secret = free_port(), {"PENSTOCK_SECRET": "s3cret"}
    variables = [
        jax_variables(port, place, count) | secret if count > 1 else {} for place in range(count)
    ]
    return [
        start_module(name, *words, variables=own, num_devices=devices_each) for own in variables
    ]


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines that a process prints, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


def read_until(stream, *words: bytes) -> bytes:
    """Read until all words have come; fail at the end of the stream."""
    read = b""
    while not all(word in read for word in words):
        line = stream.readline()
        assert line, read
        read += line
    return read


def join(what: str = "plain") -> dict:
    """Join the others; return what came of it."""
    import jax
    import numpy as np

    import penstock as ps
    from penstock import readers

    before = readers.arrays({"x": np.arange(12)}, 6)
    if what == "adopt":
        address, count, place = (
            os.environ[f"OWN_{name}"] for name in ("ADDRESS", "COUNT", "PLACE")
        )
        jax.distributed.initialize(address, int(count), int(place))
    ps.distributed.initialize()
    ps.distributed.initialize()
    from jax.experimental import multihost_utils

    data = {"x": np.arange(12)}
    own = readers.arrays(data, 6)
    workers = "process" if what == "adopt" else "thread"
    numbers = readers.indexed(range(12), 6, num_workers=1, workers=workers)
    samples = readers.shuffle(readers.arrays(data, None), 12, seed=3)
    total = multihost_utils.process_allgather(np.float32(jax.process_index() + 1)).sum()
    return {
        "total": float(total),
        "count": jax.process_count(),
        "local": jax.local_device_count(),
        "before": [batch["x"].tolist() for batch in before],
        "own": [batch["x"].tolist() for batch in own],
        "all": [batch["x"].tolist() for batch in readers.arrays(data, 6, shard=readers.Shard())],
        "indexed": [batch.tolist() for batch in numbers],
        "samples": [[int(one["x"]) for one in batch] for batch in readers.batch(samples, 6)],
        "generated": list(readers.batch(lambda: iter(range(4)), 4)),
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(join(sys.argv[1])))

"""What each process of a group finds in its environment: the coordinator, its number, a device."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from typing import Literal

from penstock.distributed import huge_pages, secret

Place = Literal["cpu", "gpu"]

# Below those that systems give to whoever connects to something: a port stays free until the
# coordinator takes it, which is seconds later.
_PORTS = range(20_000, 32_768)
_NUM_TRIES = 100
_NVIDIA_SMI_SECS = 60


def choose_port() -> int:
    """Return a port of 127.0.0.1 that nobody has."""
    for port in [*random.Random().sample(_PORTS, _NUM_TRIES), 0]:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("launch got no free port on 127.0.0.1, expected one. Look at `ss --listening`.")


def make_group_variables(num_processes: int, port: int, num_restarts: int) -> dict[str, str]:
    """Return the variables that all processes of a group share."""
    address = f"127.0.0.1:{port}"
    variables = {
        "JAX_COORDINATOR_ADDRESS": address,
        # JAX would open the port to the whole network.
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(num_processes),
        "PENSTOCK_RESTARTS": str(num_restarts),
        # The last words of a process that is killed are not in a buffer.
        "PYTHONUNBUFFERED": "1",
        **secret.make_variables(os.environ),
        **huge_pages.find_variables(),
    }
    # numpy's and torch's threads: each process would start one for every core. XLA's own pool is
    # left as it is: programs wait in it for other processes, and a share of the cores (NPROC) made
    # two processes' steps of 20 ms no faster.
    if num_processes > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, count_cores() // num_processes))
    return variables


def make_process_variables(rank: int) -> dict[str, str]:
    """Return the variables that tell one process of a group which it is."""
    return {"JAX_PROCESS_ID": str(rank), "PENSTOCK_LOCAL_RANK": str(rank)}


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def assign_devices(
    num_processes: int, place: Place | None, environment: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """Return the variables that give each process a device of its own; of GPUs without a place.

    On GPUs each process sees one alone, so that no library in it takes memory of another's. On CPU
    a process has one device anyway. ValueError says that there are fewer GPUs than processes.
    """
    if place == "cpu":
        return [{"JAX_PLATFORMS": "cpu"}] * num_processes
    platforms = environment.get("JAX_PLATFORMS", "")
    names_gpu = bool({"cuda", "gpu"} & set(platforms.split(",")))
    is_asked = place == "gpu" or names_gpu
    if not is_asked and (platforms or not _has_cuda_plugin()):
        return [{}] * num_processes
    gpus = find_gpus(environment)
    if not gpus and not is_asked:
        return [{}] * num_processes
    if len(gpus) < num_processes:
        expected = f"at most {len(gpus)}, the number of" if gpus else "some"
        raise ValueError(
            f"num_processes got {num_processes} on GPUs, expected {expected} GPUs in "
            f"CUDA_VISIBLE_DEVICES or `nvidia-smi -L`. Each process has one of its own. Start "
            f"{'fewer, or start ' * bool(gpus)}them with place 'cpu'."
        )
    # "cpu" too: a program may ask for the host's device by name.
    platform = {} if names_gpu or place is None else {"JAX_PLATFORMS": "cuda,cpu"}
    return [{"CUDA_VISIBLE_DEVICES": gpu, **platform} for gpu in gpus[:num_processes]]


def find_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        # CUDA sees those before the first that does not exist.
        end = next((n for n, name in enumerate(names) if name in ("", "-1")), len(names))
        return [] if given.strip() == "NoDevFiles" else names[:end]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        said = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_SECS, check=True
        )
    # A driver that does not answer has no GPUs for us.
    except (OSError, subprocess.SubprocessError):
        return []
    return read_gpu_list(said.stdout)


def read_gpu_list(text: str) -> list[str]:
    """Return the GPUs in what `nvidia-smi -L` prints; of one that is divided, its parts."""
    gpus: list[str] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+):", line):
            gpus.append(whole[1])
        elif part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            # The GPU itself, which stands above its parts, is none.
            if gpus and gpus[-1].isdigit():
                gpus.pop()
            gpus.append(part[1])
    return gpus


def _has_cuda_plugin() -> bool:
    # Looked for, not imported: JAX takes a second.
    return any(importlib.util.find_spec(f"jax_cuda{n}_plugin") is not None for n in (12, 13))

"""Commands in several processes: joined before the first computation, and one of them speaks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from penstock import distributed
from penstock._mesh import Place


def join_processes(hosts: Sequence[str] = (), process_id: int = 0) -> None:
    """Join the processes of `--worker_hosts`, else those that a launcher started."""
    if len(hosts) > 1:
        distributed.initialize(hosts=hosts, process_id=process_id)
    else:
        distributed.initialize()


def is_writing_process() -> bool:
    # A process that is alone need not start its devices to know.
    return not jax.distributed.is_initialized() or not jax.process_index()


@contextlib.contextmanager
def keep_stdout_clean(is_wanted: bool) -> Iterator[None]:
    """Have what several processes write to stdout meanwhile go to stderr, also what C++ writes.

    Gloo, with which JAX joins the CPUs of processes, writes a line when it connects: no JSON.
    """
    if not is_wanted or not jax.distributed.is_initialized() or sys.stdout is None:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def find_own_place() -> Place:
    """Return the devices of this process alone, as `Trainer` takes them."""
    # Of one process whatever there is: `Trainer` says what is wrong where there is none.
    return jax.local_devices() if jax.distributed.is_initialized() else None


def sum_over_processes(counts: np.ndarray) -> np.ndarray:
    gathered = multihost_utils.process_allgather(counts)
    return gathered.reshape(-1, *counts.shape).sum(axis=0)

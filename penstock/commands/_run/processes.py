"""Commands in several processes: joined before the first computation, and one of them speaks."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Return whether this process is the one that writes and prints."""
    # A process that is alone need not start its devices to know.
    return not jax.distributed.is_initialized() or not jax.process_index()


def find_own_place() -> Place:
    """Return the devices of this process alone, as `Trainer` takes them."""
    # Of one process whatever there is: `Trainer` says what is wrong where there is none.
    return jax.local_devices() if jax.distributed.is_initialized() else None


def sum_over_processes(counts: np.ndarray) -> np.ndarray:
    """Return the sum of what all processes have counted."""
    gathered = multihost_utils.process_allgather(counts)
    return gathered.reshape(-1, *counts.shape).sum(axis=0)

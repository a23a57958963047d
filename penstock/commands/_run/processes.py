"""Commands in several processes: joined before the first computation, and one of them speaks."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils

from penstock import distributed
from penstock._mesh import Place
from penstock.commands._checks import split_words
from penstock.commands._flags import PerformanceFlags


def join_processes(flags: PerformanceFlags | None = None) -> None:
    """Join the processes of `--worker_hosts`, else those that a launcher started.

    Arguments:
      flags: of `penstock train`; other commands have no such hosts.
    """
    hosts = [] if flags is None else split_words(flags.worker_hosts)
    if flags is not None and len(hosts) > 1:
        distributed.initialize(hosts=hosts, process_id=flags.task_index)
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


def pad_to_share(batch: np.ndarray, batch_size: int) -> np.ndarray:
    """Return a batch padded to what each process has of a full one; unchanged on one process.

    Of a short last batch processes have unequal parts, and `infer` would run another program on
    each.

    Arguments:
      batch: `[B, ...]`.
      batch_size: of all processes together.
    """
    if jax.process_count() == 1:
        return batch
    missing = batch_size // jax.process_count() - len(batch)
    return np.pad(batch, [(0, missing)] + [(0, 0)] * (batch.ndim - 1))


def sum_over_processes(counts: np.ndarray) -> np.ndarray:
    """Return the sum of what all processes have counted, of any shape."""
    if jax.process_count() == 1:
        return counts
    # JAX has no integers of 64 bits unless it is told to.
    return np.asarray(multihost_utils.process_allgather(counts.astype(np.int32))).sum(axis=0)

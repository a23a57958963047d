"""`initialize`: join the processes that were started together."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import multiprocessing
import os
import socket
import sys
from collections.abc import Sequence

from penstock._errors import check_count
from penstock.distributed import rendezvous, secret
from penstock.distributed.environments import (
    Given,
    choose_local_devices,
    detect,
    split_address,
)
from penstock.distributed.launchers import Membership, join_address
from penstock.distributed.listening import is_loopback, is_own_address
from penstock.distributed.waiting_times import CONNECT_SECS, WaitingTimes, choose_waiting_times

_LOGGER = logging.getLogger("penstock")


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    hosts: Sequence[str] | None = None,
    heartbeat_secs: float | None = None,
    initialization_secs: float | None = None,
    hang_secs: float | None = None,
) -> None:
    """Join the processes that were started together, before the first computation.

    A script calls it once, whatever starts it; in a single process it does nothing. Every process
    must call it, and it returns when all have joined. Arguments that are not given are read from
    the environment of the innermost launcher: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID, as set by `penstock launch`; torchrun; Open MPI; MPICH, with
    JAX_COORDINATOR_ADDRESS; srun of Slurm; Cloud TPU; SkyPilot; dstack; an indexed Job of
    Kubernetes. If a launcher starts several processes on a machine with GPUs, each takes one GPU.
    Processes already joined by `jax.distributed.initialize` are kept.

    Arguments:
      coordinator_address: HOST:PORT at which process 0 listens.
      num_processes: the number of processes.
      process_id: the number of this process, from 0.
      hosts: instead of the first two, HOST:PORT of each process, like FastNN's worker_hosts and
        OneFlow's machines. Without `process_id`, the entry with an address of this machine is used.
      heartbeat_secs: how long a process may be silent; by default PENSTOCK_HEARTBEAT_SECS, or 30.
      initialization_secs: how long to wait for the others; by default
        PENSTOCK_INITIALIZATION_SECS, or 1800.
      hang_secs: how long a step may take; by default PENSTOCK_HANG_SECS, or without limit.

    Raises:
      ValueError: arguments or environment variables contradict each other, or are not enough.
      TimeoutError: some processes did not join; the error names them.
      OSError: process 0 cannot listen at its port, or another run uses it.
      RuntimeError: JAX has already run a computation, and other processes can no longer join.

    >>> initialize()  # alone: nothing happens
    """
    times = choose_waiting_times(
        heartbeat_secs=heartbeat_secs, initialization_secs=initialization_secs, hang_secs=hang_secs
    )
    given = _check_given(coordinator_address, num_processes, process_id, hosts)
    # A process that multiprocessing spawns runs the script's top level again, to find its
    # functions there: it is not the one that the launcher started.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        return
    is_joined = _is_jax_joined()
    member = _describe_jax() if is_joined else detect(os.environ, given)
    if member.note:
        _warn_once(member.note)
    if member.is_alone:
        return
    _warn_without_secret(member)
    if not is_joined:
        _join(member, times)
    from penstock.distributed import this_process  # it imports JAX, which one alone may not need

    if this_process.start(times):
        _announce(member)


def _warn_without_secret(member: Membership) -> None:
    """Say that strangers may take a place, where other machines than this one reach process 0."""
    if member.process_id or is_loopback(member.host or "") or secret.read(os.environ):
        return
    _warn_once(
        f"process 0 listens at {member.address} for other machines, and the run has no secret: "
        "whoever reaches that port can take the place of a process. Set PENSTOCK_SECRET, or "
        "PENSTOCK_SECRET_FILE, alike for all processes (`penstock docs pods`)."
    )


@functools.cache
def _warn_once(note: str) -> None:
    _LOGGER.warning("%s", note)


def _check_given(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    hosts: Sequence[str] | None,
) -> Given:
    if num_processes is not None:
        check_count("num_processes", num_processes, 1)
    if process_id is not None:
        check_count("process_id", process_id, 0)
    if hosts is not None:
        if isinstance(hosts, str) or not hosts or coordinator_address or num_processes:
            raise ValueError(
                f"initialize got hosts={hosts!r}, {coordinator_address=}, {num_processes=}, "
                "expected hosts alone, a list of HOST:PORT. The first is the coordinator's "
                "address, and their number is that of the processes. Leave the others out, or "
                "hosts."
            )
        if process_id is None and len(hosts) > 1:
            process_id = _find_place(hosts)
        coordinator_address, num_processes = hosts[0], len(hosts)
    given = {
        "coordinator_address": coordinator_address or None,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    return {key: value for key, value in given.items() if value is not None}


def _find_place(hosts: Sequence[str]) -> int:
    """Return which of the hosts this machine is."""
    names = [split_address(host, f"hosts[{place}]")[0] for place, host in enumerate(hosts)]
    places = [place for place, name in enumerate(names) if is_own_address(name)]
    if len(places) != 1:
        is_here = f"{len(places)} of this machine" if places else "none of this machine"
        raise ValueError(
            f"hosts got {', '.join(hosts)}: {is_here}, {socket.gethostname()}, expected one of "
            "this machine. By its address each finds out which of the processes it is. Check the "
            "addresses, or say it with process_id."
        )
    return places[0]


def _is_jax_joined() -> bool:
    # Not imported: that takes a second, and a process alone may not need it.
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def _describe_jax() -> Membership:
    """Return what JAX knows of the processes that it has joined."""
    # Not jax.process_index(), which would start the backend.
    from jax._src.distributed import global_state

    host, port = split_address(global_state.coordinator_address or "")
    return Membership(
        launcher="jax.distributed",
        host=host,
        port=port,
        num_processes=global_state.num_processes,
        process_id=global_state.process_id,
    )


def _join(member: Membership, times: WaitingTimes) -> None:
    """Meet the others, and have JAX join them."""
    import jax
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise RuntimeError(
            f"initialize got {member.num_processes} processes to join, by {member.launcher}, after "
            "JAX's first computation, expected to come before it. JAX has begun with the devices "
            "of this process alone, and takes no others in. jax.devices() and jax.process_index() "
            "begin too. Call it at the top of the script."
        )
    if member.process_id == 0 and not is_own_address(member.host or ""):
        _LOGGER.warning(
            "process 0 runs on %s, and %s leads the others to %s, which is no address of it. They "
            "find it only if that is forwarded; JAX_COORDINATOR_ADDRESS=HOST:PORT sets another.",
            *(socket.gethostname(), member.launcher, member.address),
        )
    host, port = _choose_bind_address(member)
    rendezvous.meet(member, (host, port), times.initialization_secs, secret.read(os.environ))
    jax.distributed.initialize(
        member.address,
        member.num_processes,
        member.process_id,
        local_device_ids=choose_local_devices(os.environ, member),
        # It has been detected, and what JAX does not find it would look for in the network.
        cluster_detection_method="deactivate",
        # Who waits longer for one that died since is ended by JAX, by SIGABRT.
        initialization_timeout=math.ceil(CONNECT_SECS),
        # JAX ends a process by SIGABRT and names nobody. Our own watch, which names the culprit and
        # writes all stacks, must have spoken by then.
        heartbeat_timeout_seconds=math.ceil(times.heartbeat_secs + max(times.heartbeat_secs, 15)),
        coordinator_bind_address=join_address(host, port) if host else None,
    )


def _choose_bind_address(member: Membership) -> tuple[str, int]:
    """Return where process 0 listens; an empty host is every address of its machine."""
    address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "").strip()
    if address:
        host, port = split_address(address, "the environment variable JAX_COORDINATOR_BIND_ADDRESS")
        return "" if host in ("::", "0.0.0.0") else host, port
    host, port = member.host or "", member.port or 0
    # What listens takes anybody's word: on one machine nobody outside it can call.
    return host if is_loopback(host) else "", port


def _announce(member: Membership) -> None:
    """Say once what was joined."""
    restart = f", restart {member.restarts}" if member.restarts else ""
    line = (
        f"joined {member.num_processes} processes through {member.launcher} (process "
        f"{member.process_id} of {member.num_processes} on {socket.gethostname()}, coordinator "
        f"{member.address}{restart})"
    )
    if member.process_id:
        _LOGGER.debug("%s", line)
    elif _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.info("%s", line)
    else:
        # Python shows no more than warnings until a script says otherwise. What was joined is to
        # be seen: a launcher that was not found is a run that trains as often as it was started.
        with contextlib.suppress(OSError, ValueError):
            print(f"penstock: {line}", file=sys.stderr, flush=True)

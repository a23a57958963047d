"""The group that this process has joined, and `initialize`, which joins it."""

from __future__ import annotations

import functools
import logging
import math
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock._errors import check_int
from penstock.distributed import exits, rendezvous, secret
from penstock.distributed.environments import (
    Membership,
    Settings,
    choose_local_devices,
    detect,
    join_address,
    split_address,
)
from penstock.distributed.group import ALONE, Group, Joined, find_group
from penstock.distributed.hub import Hub
from penstock.distributed.listening import is_loopback, is_own_address
from penstock.distributed.member import Member
from penstock.distributed.waiting_times import CONNECT_SECS, WaitingTimes, choose_waiting_times

# Imported where it is used: a process alone may not need it.
if TYPE_CHECKING:
    import jax

_LOGGER = logging.getLogger("penstock")
_ADDRESS_KEY = "penstock/hub"


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
    arguments = _check_arguments(coordinator_address, num_processes, process_id, hosts)
    import multiprocessing

    # A process that multiprocessing spawns runs the script's top level again, to find its
    # functions there: it is not the one that the launcher started.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        return
    is_joined = _is_jax_joined()
    member = _describe_jax() if is_joined else detect(os.environ, arguments)
    if member.note:
        _warn_once(member.note)
    if member.is_alone:
        return
    _warn_without_secret(member)
    if not is_joined:
        _join(member, times)
    if start(times):
        _announce(member)


def _warn_without_secret(member: Membership) -> None:
    """Say that strangers may take a place, where other machines than this one reach process 0."""
    hosts = member.host or "", _choose_bind_address(member)[0]
    if member.process_id or all(map(is_loopback, hosts)) or secret.read(os.environ):
        return
    _warn_once(
        f"process 0 listens at {member.address} for other machines, and the run has no secret: "
        "whoever reaches that port can take the place of a process. Set PENSTOCK_SECRET, or "
        "PENSTOCK_SECRET_FILE, alike for all processes (`penstock docs pods`)."
    )


@functools.cache
def _warn_once(note: str) -> None:
    _LOGGER.warning("%s", note)


def _check_arguments(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    hosts: Sequence[str] | None,
) -> Settings:
    if num_processes is not None:
        check_int("num_processes", num_processes, 1)
    if process_id is not None:
        check_int("process_id", process_id, 0)
    if hosts is not None:
        if isinstance(hosts, str) or not hosts or coordinator_address or num_processes:
            raise ValueError(
                f"initialize got hosts={hosts!r}, {coordinator_address=}, {num_processes=}, "
                "expected hosts alone, a list of HOST:PORT. The first is the coordinator's "
                "address, and their number that of the processes. Leave the others out, or hosts."
            )
        if process_id is None and len(hosts) > 1:
            process_id = _find_place(hosts)
        coordinator_address, num_processes = hosts[0], len(hosts)
    arguments = {
        "coordinator_address": coordinator_address or None,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    return {key: value for key, value in arguments.items() if value is not None}


def _find_place(hosts: Sequence[str]) -> int:
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
    # It takes SIGTERM from whoever is in no call of ours, and ends nothing.
    jax.config.update("jax_enable_preemption_service", False)
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
        exits.say(line)


def find_group_of(mesh: jax.sharding.Mesh) -> Group:
    """Return the group that runs programs on a mesh: this process alone, or all that have joined.

    Where the mesh is that of all processes, and only JAX has joined them, they join here. One with
    devices of some processes, and not of all, is a ValueError.
    """
    processes = {device.process_index for device in mesh.devices.flat}
    # To one process alone the devices of others are those of a topology: programs are compiled for
    # what it describes, and run nowhere.
    if len(processes) == 1 or _count() == 1:
        return ALONE
    # Before they are joined: that would wait for those that have no part in the mesh.
    if len(processes) != _count():
        raise ValueError(
            f"place got devices of {len(processes)} of {_count()} processes, expected those of "
            "all of them, or of this one alone. Leave place out, or pass jax.local_devices()."
        )
    start(choose_waiting_times())
    return find_group()


def start(times: WaitingTimes) -> bool:
    """Join the other processes of this run, which JAX has joined; return whether it did.

    Collective. Whoever has joined already returns at once.
    """
    if Joined.group is not ALONE or _count() == 1:
        return False
    _wait_for_all(times.initialization_secs)
    # JAX has no public name for the store that its processes share; Orbax takes it here too.
    from jax._src import distributed

    state = distributed.global_state
    hub, client = None, state.client
    assert client is not None
    assert state.coordinator_address is not None
    host = state.coordinator_address.rsplit(":", 1)[0].strip("[]")
    own_secret = secret.read(os.environ)
    if not state.process_id:
        nonce = secrets.token_hex(16)
        # As JAX's coordinator: the others come by the name they know.
        host = host if is_loopback(host) else ""
        hub = Hub(
            _count(),
            secret.prove(own_secret, nonce),
            host=host,
            heartbeat_secs=times.heartbeat_secs,
            hang_secs=times.hang_secs,
        )
        client.key_value_set(_ADDRESS_KEY, f"{hub.port} {nonce}")
        host = host or "localhost"
    value = client.blocking_key_value_get(_ADDRESS_KEY, int(1000 * CONNECT_SECS))
    port, nonce = value.split()
    # Whoever reaches JAX's store can read what is there; the secret is not.
    token = secret.prove(own_secret, nonce)
    address = (host, int(port))
    Joined.group = Member(
        state.process_id, _count(), address, token, heartbeat_secs=times.heartbeat_secs, hub=hub
    )
    exits.install(end)
    return True


def end(error: BaseException | None) -> int | None:
    """Leave the group at the end of this process's work; return the exit code it should have.

    Who starts processes and keeps them calls it; else it happens at exit. None is for a good end.
    """
    joined, Joined.group = Joined.group, ALONE
    return joined.end(error)


def _wait_for_all(timeout_secs: float) -> None:
    # A collective waits 30 s for the slowest process and then fails, on CPU, and a script's next
    # step may be one.
    from jax._src.distributed import global_state

    client = global_state.client
    assert client is not None
    try:
        client.wait_at_barrier("penstock.distributed.initialize", math.ceil(timeout_secs * 1000))
    except RuntimeError as error:  # JAX's own error, of which this is the documented base
        reason = str(error).partition("\n")[0].rstrip(".")
        raise TimeoutError(
            f"initialize got not all of {global_state.num_processes} processes at "
            f"{global_state.coordinator_address} within {timeout_secs:g} s, expected each to call "
            f"it. JAX says: {reason}. Call ps.distributed.initialize() in every process."
        ) from error


def _count() -> int:
    """Return how many processes JAX has joined; starts no backend."""
    from jax._src import distributed

    state = distributed.global_state
    return 1 if state.client is None else state.num_processes

"""The group that this process has joined: one for a process, as JAX's own runtime is."""

from __future__ import annotations

import math
import os
import secrets

import jax

from penstock.distributed import exits, secret
from penstock.distributed.group import Group
from penstock.distributed.hub import Hub
from penstock.distributed.listening import is_loopback
from penstock.distributed.member import Member
from penstock.distributed.waiting_times import CONNECT_SECS, WaitingTimes, choose_waiting_times

_ADDRESS_KEY = "penstock/hub"
_ALONE = Group()


class _Process:
    """What this process has joined."""

    joined: Member | None = None


def find_group() -> Group:
    """Return the group that this process has joined; alone, where it has joined none.

    It joins none itself: that is collective, and the others may not ask.
    """
    return _Process.joined or _ALONE


def find_group_of(mesh: jax.sharding.Mesh) -> Group:
    """Return the group that runs programs on a mesh: this process alone, or all that have joined.

    Where the mesh is that of all processes, and only JAX has joined them, they join here. One with
    devices of some processes, and not of all, is a ValueError.
    """
    processes = {device.process_index for device in mesh.devices.flat}
    # To one process alone the devices of others are those of a topology: programs are compiled for
    # what it describes, and run nowhere.
    if len(processes) == 1 or _count() == 1:
        return _ALONE
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
    if _Process.joined is not None or _count() == 1:
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
        hub.start()
        client.key_value_set(_ADDRESS_KEY, f"{hub.port} {nonce}")
        host = host or "localhost"
    said = client.blocking_key_value_get(_ADDRESS_KEY, int(1000 * CONNECT_SECS))
    port, nonce = said.split()
    # Whoever reaches JAX's store can read what is there; the secret is not.
    token = secret.prove(own_secret, nonce)
    address = (host, int(port))
    _Process.joined = Member(
        state.process_id, _count(), address, token, heartbeat_secs=times.heartbeat_secs, hub=hub
    )
    exits.install(end)
    return True


def end(error: BaseException | None) -> int | None:
    """Leave the group at the end of this process's work; return the exit code it should have.

    Who starts processes and keeps them calls it; else it happens at exit. None is for a good end.
    """
    joined, _Process.joined = _Process.joined, None
    return None if joined is None else joined.end(error)


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

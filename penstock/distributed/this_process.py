"""The group that this process has joined: one for a process, as JAX's own runtime is."""

from __future__ import annotations

import os
import secrets

import jax

from penstock.distributed import exits
from penstock.distributed.group import Group
from penstock.distributed.hub import Hub
from penstock.distributed.link import CONNECT_SECS
from penstock.distributed.member import Member

HEARTBEAT_SECS = 30.0
HEARTBEAT_VARIABLE, HANG_VARIABLE = "PENSTOCK_HEARTBEAT_SECS", "PENSTOCK_HANG_SECS"

_ADDRESS_KEY = "penstock/hub"
_ALONE = Group()


class _Process:
    """What this process has joined."""

    joined: Member | None = None


def find_group() -> Group:
    """Return the group of this process; alone, where it has joined none."""
    if _Process.joined is None and jax.distributed.is_initialized() and _count() > 1:
        start()
    return _Process.joined or _ALONE


def find_group_of(mesh: jax.sharding.Mesh) -> Group:
    """Return the group that runs programs on a mesh: this process alone, or all that have joined.

    Raises:
      ValueError: the mesh has devices of some processes, and not of all.
    """
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) == 1:
        return _ALONE
    group = find_group()
    if len(processes) != group.count:
        raise ValueError(
            f"place got devices of {len(processes)} of {group.count} processes, expected those of "
            "all of them, or of this one alone. Leave place out, or pass jax.local_devices()."
        )
    return group


def start(*, heartbeat_secs: float | None = None, hang_secs: float | None = None) -> None:
    """Join the other processes of this run, which JAX has joined. Collective.

    Arguments:
      heartbeat_secs: how long a process may be silent; `PENSTOCK_HEARTBEAT_SECS`, or 30.
      hang_secs: how long all of them may stand still in a call; `PENSTOCK_HANG_SECS`, or for ever.
    """
    heartbeat_secs = heartbeat_secs or float(os.environ.get(HEARTBEAT_VARIABLE) or HEARTBEAT_SECS)
    hang_secs = hang_secs or float(os.environ.get(HANG_VARIABLE) or 0) or None
    if _Process.joined is not None or _count() == 1:
        return
    # JAX has no public name for the store that its processes share; Orbax takes it here too.
    from jax._src import distributed

    state = distributed.global_state
    hub, client = None, state.client
    assert client is not None
    assert state.coordinator_address is not None
    host = state.coordinator_address.rsplit(":", 1)[0].strip("[]")
    if not state.process_id:
        token = secrets.token_hex(16)
        hub = Hub(_count(), token, heartbeat_secs=heartbeat_secs, hang_secs=hang_secs)
        hub.start()
        client.key_value_set(_ADDRESS_KEY, f"{hub.port} {token}")
        host = "localhost"
    said = client.blocking_key_value_get(_ADDRESS_KEY, int(1000 * CONNECT_SECS))
    port, token = said.split()
    address = (host, int(port))
    _Process.joined = Member(
        state.process_id, _count(), address, token, heartbeat_secs=heartbeat_secs, hub=hub
    )
    exits.install(end)


def end(error: BaseException | None) -> int | None:
    """Leave the group at the end of this process's work; return the exit code it should have.

    Who starts processes and keeps them calls it; else it happens at exit. None is for a good end.
    """
    joined, _Process.joined = _Process.joined, None
    return None if joined is None else joined.end(error)


def _count() -> int:
    """Return how many processes JAX has joined; starts no backend."""
    from jax._src import distributed

    return distributed.global_state.num_processes

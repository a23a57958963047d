"""Sockets that listen: where, and how many unknown connections they take.

At every address of a machine, or where nobody outside it can call.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_HELLO_SECS = 5.0
"""How long a connection may take to say whose it is."""

_NUM_SPARE = 16
"""How many more connections may be unknown than processes are missing."""

_OWN_DESCRIPTORS = 512
"""What a process may have open beside its connections; most systems give 1,024 in all."""

Connection = TypeVar("Connection")


class Strangers(Generic[Connection]):
    """The connections that have not said whose they are: few, and none for long.

    Without bounds, silent ones would take all descriptors of the process.

    Arguments:
      drop: closes one.
    """

    def __init__(self, drop: Callable[[Connection], None]) -> None:
        self._drop = drop
        self._opened_at: dict[Connection, float] = {}  # the oldest first

    def add(self, connection: Connection, num_missing: int) -> None:
        """Take one in; the oldest goes where there are too many: a process speaks at once."""
        self._opened_at[connection] = time.monotonic()
        if len(self._opened_at) > num_missing + _NUM_SPARE:
            self._drop_oldest()

    def discard(self, connection: Connection) -> None:
        """Forget one, which has said whose it is, or is closed."""
        self._opened_at.pop(connection, None)

    def drop_silent(self) -> None:
        """Drop those whose time is over."""
        until = time.monotonic() - _HELLO_SECS
        while self._opened_at and next(iter(self._opened_at.values())) <= until:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        connection = next(iter(self._opened_at))
        self.discard(connection)
        self._drop(connection)


def raise_descriptor_limit(num_processes: int) -> None:
    """Let this process have a connection from each of so many, here and at JAX's coordinator."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OWN_DESCRIPTORS + 4 * num_processes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Where a system refuses, the connections that fit are taken.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine to itself, and nobody else can call there.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("node7")
    (True, True, False)
    """
    return host in ("localhost", "::1") or host.startswith("127.")


def is_own_address(host: str) -> bool:
    """Return whether a host is this machine.

    >>> is_own_address("127.0.0.1"), is_own_address("198.51.100.7")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # no name has 64 letters without a dot, or two dots together
        return False
    for family, kind, protocol, _, address in found:
        # Only an address of this machine can be bound.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens.

    Arguments:
      host: one of this machine's addresses; every one of them, of both kinds, where it is empty.
      port: 0 for one that is free.

    Raises:
      OSError: it cannot.
    """
    if host:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    return socket.create_server(("", port), backlog=backlog)

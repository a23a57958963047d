"""Sockets that listen: at every address of a machine, or where nobody outside it can call."""

from __future__ import annotations

import socket


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine to itself, and nobody else can call there.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("node7")
    (True, True, False)
    """
    return host in ("localhost", "::1") or host.startswith("127.")


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

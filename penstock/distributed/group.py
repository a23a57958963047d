"""The group: processes that watch each other and agree."""

from __future__ import annotations


def start(*, heartbeat_secs: float, hang_secs: float | None) -> None:
    """Begin to watch the other processes.

    Arguments:
      heartbeat_secs: how long a process may be silent.
      hang_secs: how long a step may take; None for as long as it takes.
    """

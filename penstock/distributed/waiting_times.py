"""How long processes wait for each other: as a call says, else as the environment has it."""

from __future__ import annotations

import dataclasses
import math
import os

from penstock._errors import message

CONNECT_SECS = 60.0
"""How long a process that was met a moment ago may take to connect."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitingTimes:
    """How long processes wait for each other.

    Attributes:
      heartbeat_secs: for a sign of life.
      initialization_secs: for all to be there.
      hang_secs: for progress in a call; None for ever.
    """

    heartbeat_secs: float
    initialization_secs: float
    hang_secs: float | None


def choose_waiting_times(
    *,
    heartbeat_secs: float | None = None,
    initialization_secs: float | None = None,
    hang_secs: float | None = None,
) -> WaitingTimes:
    """Return the times that are given, else those of PENSTOCK_HEARTBEAT_SECS and so on.

    Raises:
      ValueError: one is no number of seconds.

    >>> choose_waiting_times(hang_secs=300)
    WaitingTimes(heartbeat_secs=30.0, initialization_secs=1800.0, hang_secs=300.0)
    """
    return WaitingTimes(
        heartbeat_secs=_choose("heartbeat_secs", heartbeat_secs) or 30.0,
        initialization_secs=_choose("initialization_secs", initialization_secs) or 1800.0,
        hang_secs=_choose("hang_secs", hang_secs),
    )


def _choose(name: str, given: float | None) -> float | None:
    """Return seconds as they are given, else as the environment has them; None without both."""
    variable = f"PENSTOCK_{name.upper()}"
    thing, text = f"the environment variable {variable}", os.environ.get(variable, "").strip()
    if given is None and not text:
        return None
    try:
        secs = float(text if given is None else given)
    except (TypeError, ValueError):
        secs = math.nan
    if not 0 < secs < math.inf:
        raise ValueError(
            message(
                thing if given is None else name,
                repr(text if given is None else given),
                "a number of seconds above 0",
                "It is how long is waited",
                "Leave it out for the default",
            )
        )
    return secs

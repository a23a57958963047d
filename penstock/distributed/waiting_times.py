"""How long processes wait for each other: as a call says, else as the environment has it."""

from __future__ import annotations

import contextlib
import dataclasses
import os

from penstock._errors import check_number

CONNECT_SECS = 60.0
"""How long a process that was met a moment ago may take to connect."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitingTimes:
    """How long processes wait for a sign of life, for all to be there, and for progress."""

    heartbeat_secs: float
    initialization_secs: float
    hang_secs: float | None


def choose_waiting_times(
    *,
    heartbeat_secs: float | None = None,
    initialization_secs: float | None = None,
    hang_secs: float | None = None,
) -> WaitingTimes:
    """Return the times that are given, else those of PENSTOCK_HEARTBEAT_SECS and so on."""
    return WaitingTimes(
        heartbeat_secs=_choose("heartbeat_secs", heartbeat_secs) or 30.0,
        initialization_secs=_choose("initialization_secs", initialization_secs) or 1800.0,
        hang_secs=_choose("hang_secs", hang_secs),
    )


def check_secs(name: str, secs: object) -> None:
    """Raise ValueError unless these are seconds above 0; None is no limit."""
    if secs is not None:
        why = "So many seconds are waited. Leave it out for the default."
        check_number(name, secs, "(0, inf)", why)


def _choose(name: str, value: float | None) -> float | None:
    variable = f"PENSTOCK_{name.upper()}"
    secs: object = value
    if value is None and (secs := os.environ.get(variable, "").strip() or None):
        name = f"the environment variable {variable}"
        with contextlib.suppress(ValueError):
            secs = float(str(secs))
    check_secs(name, secs)
    return None if secs is None else float(secs)  # type: ignore[arg-type]

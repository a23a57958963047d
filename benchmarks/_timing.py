"""Timing of contenders on a shared machine: they alternate, in one process."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping


def alternate(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, units: int
) -> dict[str, list[float]]:
    """Return the seconds per unit of each contender in each round.

    Every round runs each contender once, so other load on the machine affects all of them. One
    extra round comes first, to compile and warm up. The order rotates from round to round.

    Arguments:
      units: units of work per call, e.g. its number of steps.
    """
    names = list(contenders)
    for name in names:
        contenders[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            contenders[name]()
            seconds[name].append((time.perf_counter() - start) / units)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """Return the median over rounds of a contender's time relative to the base's in that round."""
    return statistics.median(
        ours / theirs for ours, theirs in zip(seconds[name], seconds[base], strict=True)
    )


def environment() -> str:
    """Return one line on machine and versions."""
    import flax
    import jax
    import optax

    device = jax.devices()[0]

    return (
        f"{len(jax.devices())} x {device.device_kind} ({device.platform}), {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, JAX {jax.__version__}, flax {flax.__version__}, "
        f"optax {optax.__version__}"
    )


def row(cells: list[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join([row(header), "|" + "---|" * len(header), *map(row, rows)])

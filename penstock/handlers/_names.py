"""Metrics by name: what handlers call the values that a program function returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def named(metrics: Any, names: Sequence[str]) -> dict[str, float]:
    """Return the scalars of metrics by name; those of several objectives as `objective name`."""
    if isinstance(metrics, Mapping):
        values = {}
        for key, value in metrics.items():
            inner = isinstance(value, tuple | list | Mapping)
            parts = named(value, names).items() if inner else [("", value)]
            values |= {f"{key} {name}".strip(): part for name, part in parts}
    elif isinstance(metrics, tuple | list):
        more = [f"metric_{i}" for i in range(len(names), len(metrics))]
        values = dict(zip([*names, *more], metrics, strict=False))
    else:
        values = {} if metrics is None else {names[0] if names else "loss": metrics}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}

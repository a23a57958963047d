"""Metrics by name: what handlers call the values that a program function returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def named(metrics: Any, names: Sequence[str]) -> dict[str, float]:
    """Return the scalars of metrics by name; of nested ones and objectives as `outer inner`."""
    if isinstance(metrics, Mapping):
        entries = list(metrics.items())
    elif isinstance(metrics, tuple | list):
        more = [f"metric_{i}" for i in range(len(names), len(metrics))]
        entries, names = list(zip([*names, *more], metrics, strict=False)), ()
    else:
        entries = [] if metrics is None else [(names[0] if names else "loss", metrics)]
    values: dict[str, Any] = {}
    for key, value in entries:
        is_nested = isinstance(value, tuple | list | Mapping)
        parts = named(value, names).items() if is_nested else [("", _plain(value))]
        values |= {f"{key} {name}".strip(): part for name, part in parts}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _plain(value: Any) -> Any:
    """Return an array without axes, as `penstock.fluid` fetches them, as a Python number."""
    is_scalar = isinstance(value, np.ndarray | np.generic) and value.ndim == 0
    return value.item() if is_scalar else value

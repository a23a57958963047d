"""Metrics as handlers use them: by name, and in JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from penstock.events import Metrics


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single name may be given as a string.

    Raises:
      TypeError: they are no strings.
    """
    if isinstance(names, str):
        return (names,)
    given = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in given):
        raise TypeError(
            f"names got {names!r}, expected a list of strings. They name the values of a program "
            "function that returns a tuple or a list. Pass names=['loss', 'accuracy']."
        )
    return given


def name_values(metrics: Metrics, names: Sequence[str]) -> dict[str, float | np.ndarray]:
    """Return metrics by name, arrays included.

    Values of a dict have its keys. Others have `names`, then `metric_2`, `metric_3` by their
    position. Nested metrics, and those of several objectives, are called `outer inner`.

    >>> name_values({"a": (0.5, 0.25), "b": 1.0}, ["loss"])
    {'a loss': 0.5, 'a metric_1': 0.25, 'b': 1.0}
    """
    if isinstance(metrics, Mapping):
        entries = list(metrics.items())
    elif isinstance(metrics, tuple | list):
        more = [f"metric_{i}" for i in range(len(names), len(metrics))]
        entries, names = list(zip([*names, *more], metrics, strict=False)), ()
    else:
        entries = [(names[0] if names else "loss", metrics)]
    values: dict[str, float | np.ndarray] = {}
    for key, value in entries:
        if isinstance(value, tuple | list | Mapping):
            values |= {f"{key} {name}": part for name, part in name_values(value, names).items()}
        elif value is not None:
            values[str(key)] = cast("float | np.ndarray", value)
    return values


def name_scalars(metrics: Metrics, names: Sequence[str]) -> dict[str, float]:
    """Return the scalars among metrics by name, as Python numbers; see `name_values`.

    >>> name_scalars((0.5, np.ones(3)), ["loss"])
    {'loss': 0.5}
    """
    scalars: dict[str, float] = {}
    for name, value in name_values(metrics, names).items():
        # `penstock.fluid` fetches arrays without axes.
        if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
            value = value.item()
        if isinstance(value, int | float):
            scalars[name] = value
    return scalars


def encode_json(value: object) -> object:
    """Return a value as JSON holds it: lists for arrays, strings for what is not finite.

    >>> encode_json({"loss": float("nan"), "recall": np.array([0.5, np.inf])})
    {'loss': 'nan', 'recall': [0.5, 'inf']}
    """
    if isinstance(value, dict):
        return {key: encode_json(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return encode_json(value.tolist())
    if isinstance(value, list | tuple):
        return [encode_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

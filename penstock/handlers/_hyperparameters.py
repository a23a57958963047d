"""What a run was begun with, as one flat table: what the user says, and what the trainer says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.events import Training

Hyperparameters = dict[str, bool | int | float | str]


def check_hyperparameters(owner: str, given: Mapping[str, Any] | None) -> Hyperparameters:
    """Return what a user gave by name: dicts in it as `outer/inner`, what is no number as text.

    Raises:
      TypeError: it is no mapping.

    >>> check_hyperparameters("WandB", {"rate": 0.1, "sizes": [1, 2], "net": {"depth": 3}})
    {'rate': 0.1, 'sizes': '[1, 2]', 'net/depth': 3}
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            f"{owner} got hyperparameters={given!r}, expected a dict of values by name. They are "
            "shown beside the run. Pass vars(arguments) of what argparse returned."
        )
    return dict(_flatten(given or {}, ""))


def list_hyperparameters(
    given: Hyperparameters,
    trainer: Training | None,
    parts: Sequence[str] = ("configuration", "devices", "parameters", "versions"),
) -> Hyperparameters:
    """Return what the user gave, and those parts of what `trainer.describe()` says."""
    if trainer is None:
        return dict(given)
    described = trainer.describe()
    said: dict[str, Any] = {part: described[part] for part in parts}
    # As long as the network; a user's own "table" is one value like another.
    said = {part: {k: v for k, v in said[part].items() if k != "table"} for part in said}
    return {**dict(_flatten(said, "")), **given}


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{name}", value
        # What is not set is no value.
        elif value is not None:
            yield f"{prefix}{name}", _as_text(value)


def _as_text(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)

"""Values as JSON that every reader takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def encoded(value: Any) -> Any:
    """Return a value as JSON holds it: lists for arrays, strings for what is not finite.

    >>> encoded({"loss": float("nan"), "recall": np.array([0.5, np.inf])})
    {'loss': 'nan', 'recall': [0.5, 'inf']}
    """
    if isinstance(value, dict):
        return {key: encoded(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return encoded(value.tolist())
    if isinstance(value, list | tuple):
        return [encoded(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

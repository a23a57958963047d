"""Values that JSON does not have: arrays, numbers that are not finite, and bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

_KEY = "__base64__"


def encode_json(value: Any) -> Any:
    """Return a value as JSON holds it: lists for arrays, strings for what is not finite.

    >>> import numpy as np
    >>> encode_json({"loss": float("nan"), "recall": np.array([0.5, np.inf])})
    {'loss': 'nan', 'recall': [0.5, 'inf']}
    """
    if isinstance(value, dict):
        return {key: encode_json(part) for key, part in value.items()}
    # Arrays and scalars of numpy, which commands that compute nothing do not import.
    if hasattr(value, "tolist"):
        return encode_json(value.tolist())
    if isinstance(value, list | tuple):
        return [encode_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def encode_bytes(state: object) -> Any:
    """Return bytes, as Grain's `DataLoader` has for a state, as a dict; any other state as it is.

    >>> encode_bytes(b"abc"), encode_bytes({"position": 3})
    ({'__base64__': 'YWJj'}, {'position': 3})
    """
    return {_KEY: base64.b64encode(state).decode()} if isinstance(state, bytes) else state


def decode_bytes(state: Any, *, older_key: str = _KEY) -> Any:
    """Return what `encode_bytes` was given.

    Args:
      state: what it returned.
      older_key: the key in states that an earlier release wrote.

    >>> decode_bytes({"__base64__": "YWJj"}), decode_bytes({"old": "YWJj"}, older_key="old")
    (b'abc', b'abc')
    """
    if isinstance(state, Mapping) and len(state) == 1:
        for key in (_KEY, older_key):
            if key in state:
                return base64.b64decode(state[key])
    return state

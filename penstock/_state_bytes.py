"""Bytes in the states of readers, as JSON holds them: Grain's `DataLoader` has such states."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

_KEY = "__base64__"


def encode_bytes(state: object) -> Any:
    """Return bytes as a dict with their base64, any other state as it is.

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

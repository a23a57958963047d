"""What a checkpoint holds of readers' positions: JSON, one for each process."""

from __future__ import annotations

import json

import jax
import numpy as np

from penstock._state_bytes import decode_bytes, encode_bytes


def gather_states(state: object) -> list[object]:
    """Return a reader's state for JSON, one for each process; bytes as base64. Collective.

    Raises:
      TypeError: JSON cannot hold it.
    """
    try:
        text = json.dumps(encode_bytes(state))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the reader's get_state() got {type(state).__name__} that JSON cannot hold ({error}), "
            "expected dicts, lists, strings and Python's own numbers, or bytes. Convert it there."
        ) from error
    if jax.process_count() == 1:
        return [json.loads(text)]
    from jax.experimental import multihost_utils

    # Processes gather arrays of one shape: texts are padded to the longest, which JSON does not
    # mind.
    size = int(np.max(multihost_utils.process_allgather(np.int32(len(text)))))
    padded = np.frombuffer(text.encode().ljust(size), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row)) for row in rows]


def pick_state(states: list[object] | None) -> object:
    """Return this process's state out of what a checkpoint holds; None where it holds none."""
    if not states or len(states) != jax.process_count():
        # Our readers' states do not depend on the process that took them.
        states = (states or [None])[:1] * jax.process_count()
    return decode_bytes(states[jax.process_index()])

"""What several processes must do alike: end on a signal, save on a clock, read one checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from penstock._checkpoint import Contents, Store
from penstock._errors import CheckpointError

AGREE_EVERY = 16
"""Launches between two agreements: each waits for the slowest process."""

_NONE, _FAILED = -1, -2
"""What travels in place of a step: there is no checkpoint, or it could not be read."""


def agree(signal: int | None, is_due: bool) -> tuple[int | None, bool]:
    """Return the signal that some process got, and whether the first one wants to save. Collective.

    A process that left the loop alone would leave the others waiting in a collective for ever.
    """
    # One exchange for both: each waits for the slowest process.
    rows = gather(signal or 0, int(is_due))
    # Whoever got a signal ends all of them; the clock that counts is the first process's.
    return int(rows[:, 0].max()) or None, bool(rows[0, 1])


def gather(*numbers: int) -> np.ndarray:
    """Return the numbers of all processes, `[P, N]`, each an int32. Collective.

    The rows are in the order of the processes.
    """
    # int32, as JAX has no int64 without its x64 mode; a larger number is sent in two.
    row = np.array(numbers, np.int32)
    if jax.process_count() == 1:
        return row[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(row)).reshape(-1, len(numbers))


def take_from_first(number: int) -> int:
    """Return the first process's number on every process. Collective."""
    # In two parts of 30 bits: a step, or a negative sign, fits.
    high, low = gather(*divmod(number, 1 << 30))[0].tolist()
    return (high << 30) + low


def run_on_first(do: Callable[[], None], what: str) -> None:
    """Call a function on the first process. Collective.

    Raises: what it raises there; on the others a `CheckpointError` that it could not do it.
    """
    error = None
    if not jax.process_index():
        try:
            do()
        except Exception as raised:  # kept until the others know of it
            error = raised
    # All of them raise, or none: one that went on alone would wait in the next collective.
    if is_any(error is not None):
        raise error or CheckpointError(
            f"the first process got an error, expected it to {what}. It does so for all. Its log "
            "says what is wrong."
        )


def is_any(is_so: bool) -> bool:
    """Return whether it is so on any process. Collective."""
    return bool(gather(int(is_so)).any())


def read_newest(store: Store, *, before: int | None = None) -> Contents | None:
    """Return the newest checkpoint that can be read, None where there is none. Collective.

    Only the first process writes and deletes, so only it knows what is there to stay: it looks, and
    the others read what it has found. This run may not be writing.

    Arguments:
      before: a global step; only checkpoints up to it count.

    Raises:
      CheckpointError: there are checkpoints, and none can be read; or a process cannot read the one
        that the first has read. Then it is raised on all of them.
    """
    contents, error, step = None, None, _NONE
    if not jax.process_index():
        try:
            contents = store.read_newest(before=before)
            step = contents.position.global_step if contents is not None else _NONE
        except Exception as raised:  # kept until the others know of it: they wait for the step
            error, step = raised, _FAILED
    # The step alone travels: the files are on a disk that all of them see.
    step = take_from_first(step)
    if jax.process_index() and step >= 0:
        try:
            contents = store.read(step)
        except CheckpointError as raised:
            error = raised
    if not is_any(error is not None):
        return contents
    raise error or CheckpointError(
        f"{store.directory} got a checkpoint that another process cannot read, expected one that "
        "all of them can. They must restore the same one. Its log says what is wrong; see that "
        "every process sees the same folder."
    )

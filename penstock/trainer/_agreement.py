"""What several processes must do at the same step: end on a signal, save on a clock."""

from __future__ import annotations

import numpy as np

AGREE_EVERY = 16
"""Launches between two agreements: each waits for the slowest process."""


class Agreement:
    """Makes one answer of the wishes of all processes, now and then.

    A process that left the loop alone would leave the others waiting in a collective for ever.
    """

    def __init__(self) -> None:
        self._num_launches = 0

    def reached(self, signal: int | None, is_due: bool) -> tuple[int | None, bool]:
        """Return the signal that some process got, and whether the first one wants to save.

        Collective: every process calls it after every launch. Between agreements the answer is no.
        """
        self._num_launches += 1
        if self._num_launches % AGREE_EVERY:
            return None, False
        from jax.experimental import multihost_utils

        wishes = np.array([signal or 0, int(is_due)], np.int32)
        rows = np.asarray(multihost_utils.process_allgather(wishes)).reshape(-1, 2)
        return int(rows[:, 0].max()) or None, bool(rows[0, 1])

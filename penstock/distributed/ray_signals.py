"""SIGTERM at the driver of a run on Ray: the processes save, and end."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from penstock._interrupts import SAME_SIGNAL_SECS
from penstock.distributed import exits

STATUS_OF_SIGTERM = 128 + signal.SIGTERM

GRACE_SECS = 30.0
"""How long the processes may take to save, as under `penstock launch`."""


class ForwardedSigterm:
    """A context in which SIGTERM asks all processes to save and end; a second one ends at once.

    So does the end of the grace. Outside the main thread signals are left alone.

    Arguments:
      ray: the package.
      record: the run's `RunRecord`.
    """

    def __init__(self, ray: Any, record: Any) -> None:
        self._ray, self._record = ray, record
        self._previous: Any = None
        self._came_at: float | None = None
        self._grace = threading.Timer(GRACE_SECS, self._end_at_once)
        self._grace.daemon = True

    def __enter__(self) -> ForwardedSigterm:
        """Install the handler."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Restore the handler."""
        self._grace.cancel()
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
        # Where it waits Ray raises one with a sentence as its code, which makes a status of 1.
        if self._came_at is not None and isinstance(error, SystemExit):
            raise SystemExit(STATUS_OF_SIGTERM) from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came_at is None:
            self._came_at = now
            # Not here: this thread waits for Ray.
            threading.Thread(target=self._ask, daemon=True).start()
        # A launcher and the queue behind it may both pass it on: one wish.
        elif now - self._came_at >= SAME_SIGNAL_SECS:
            raise SystemExit(STATUS_OF_SIGTERM)

    def _ask(self) -> None:
        exits.say(f"SIGTERM: the processes save and end, within {GRACE_SECS:g} s")
        self._grace.start()
        # A run that still waits for machines has nothing to save.
        if not self._ray.get(self._record.request_end.remote()):
            self._end_at_once()

    def _end_at_once(self) -> None:
        self._came_at = 0.0
        os.kill(os.getpid(), signal.SIGTERM)

"""Signals to the launcher, kept for the processes that they are meant for."""

from __future__ import annotations

import signal
import threading
from collections import deque
from types import FrameType
from typing import Any

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class ForwardedSignals:
    """A context in which signals that would end this process are kept in `received`.

    Outside the main thread, where Python lets nobody handle signals, none are. What is ignored
    stays so: `nohup penstock launch` outlives its terminal.
    """

    def __init__(self) -> None:
        self.received: deque[int] = deque()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> ForwardedSignals:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in _FORWARDED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._keep)
            # Ignored, as a careless parent may hand it down, it hides how a process ended.
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the handlers."""
        for number, previous in self._previous.items():
            # None: of a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous = {}

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

"""Ctrl-C and SIGTERM during training: noticed after the step, at once where nothing is in hand."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

SAME_SIGNAL_SECS = 1.0
"""How soon after a SIGTERM another one is the same, to one of several processes."""


class _Thread:
    # What trains outside the main thread, where no signal comes, and the one it is to end by.
    interrupts: Interrupts | None = None
    signal: int | None = None


def request_end(number: int) -> None:
    """Have training outside the main thread end as by a signal, now or when it begins."""
    _Thread.signal = number
    if _Thread.interrupts is not None:
        _Thread.interrupts.signal = number


class Interrupts:
    """A context in which an interrupt ends training after the current step.

    The first signal is remembered, and `check` raises it where training is between two steps. Where
    the host only waits, for a reader or in a test, `is_open` is set, and it is raised at once. A
    second signal ends at once wherever it comes, but for `is_held`: a launch donates the old state;
    were the exception raised before the new one is stored, the trainer would be left with deleted
    buffers. Only a process that `is_alone` ends by itself; several end at a step they agree on, and
    `is_agreed` says that they all do by the signal that came.

    Ctrl-C is raised as `KeyboardInterrupt`, SIGTERM as `SystemExit(143)`. Outside the main thread,
    or where the program has a handler of its own for a signal, that signal is left alone.
    """

    def __init__(self, *, is_alone: bool = True) -> None:
        self._is_alone = self.is_agreed = is_alone
        self.is_held = self.is_open = False
        self.signal: int | None = None
        self._is_second = self._is_raised = False
        self._came_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self.is_agreed = self._is_alone
        # Python runs handlers in the main thread only, and lets no other install one.
        if threading.current_thread() is threading.main_thread():
            defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            for number, default in defaults.items():
                # A handler of the user's, or of a notebook, stays.
                if signal.getsignal(number) is default:
                    self._previous[number] = signal.signal(number, self._on_signal)
        else:
            _Thread.interrupts = self
            self.signal = _Thread.signal
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Restore Python's handlers; raise a signal that came and was not raised yet."""
        self._restore()
        if _Thread.interrupts is self:
            _Thread.interrupts = None
        self.is_held = self.is_open = False
        try:
            # A signal that came after the last check is not lost.
            if error is None and not self._is_raised:
                self.check()
        finally:
            self.signal, self._is_second, self._is_raised = None, False, False

    def check(self) -> None:
        """Raise the interrupt that came, if one did; of several processes, only `agree` does."""
        if self.signal is not None and self._is_alone:
            self._raise()

    def agree(self, number: int) -> NoReturn:
        """Raise the signal that some process got."""
        self.signal, self.is_agreed = number, True
        self._raise()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let an interrupt be raised at once inside; one that came before is raised here."""
        was_open, self.is_open = self.is_open, True
        try:
            self.check()
            yield
        finally:
            self.is_open = was_open

    def release(self) -> None:
        """End a hold; raise a second signal that came meanwhile."""
        self.is_held = False
        if self._is_second:
            self._raise()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        # A launcher and the queue behind it both pass SIGTERM on: of several processes, one wish.
        is_same = number == signal.SIGTERM == self.signal
        if is_same and not self._is_alone and now - self._came_at < SAME_SIGNAL_SECS:
            return
        if self.signal is not None:
            self._is_second = True
            # Between a launch and its result the old state is gone: raised by `release`.
            if self.is_held:
                return
            self._restore()
            # With its default handler back, SIGTERM ends the process here and now, without Python.
            if number == signal.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)
            raise KeyboardInterrupt
        self.signal, self._came_at = number, now
        # The host only waits: nothing would be left half done.
        if self.is_open and not self.is_held:
            self.check()

    def _raise(self) -> NoReturn:
        self._is_raised = True
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

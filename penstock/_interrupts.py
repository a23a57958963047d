"""Ctrl-C during training: held back while the state changes hands, raised right after."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """A context in which a `KeyboardInterrupt` cannot fall between a launch and its result.

    A launch donates the old state; were the exception raised before the new one is stored, the
    trainer would be left with deleted buffers. Elsewhere Ctrl-C interrupts at once, also in a
    reader that hangs. Outside the main thread, or where the program has its own handler of SIGINT,
    nothing is changed.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.is_pending = False
        self._is_installed = False

    def __enter__(self) -> Interrupts:
        """Install the handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._is_installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Restore Python's handler."""
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.is_held = False

    def raise_pending(self) -> None:
        """Raise the interrupt that came while it was held back."""
        self.is_pending = False
        raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.is_held:
            raise KeyboardInterrupt
        self.is_pending = True

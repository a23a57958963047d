"""Writing checkpoints beside training: one at a time, in a thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from penstock._checkpoint._contents import Contents
from penstock._checkpoint._store import Store

_LOGGER = logging.getLogger("penstock")

# On CPU the steps use every core, and lose what a save takes of one. Not the lowest priority, 19:
# a thread that has the interpreter's lock holds up the steps for as long as others are served
# before it. Beside two processes that kept both cores busy, tests of checkpoints took 12 times
# their processor time with 19, 4.7 times with 10 and with 5, 3.7 times with none.
_NICENESS = 5


class Writer:
    """Writes checkpoints in a thread, one at a time, and remembers what failed.

    A failure does not end training: it is logged at once, and `failures` tells at the end.

    Attributes:
      failures: a line for each checkpoint that could not be written.
      has_failed: whether the last one could not.
    """

    def __init__(self, store: Store, *, is_asynchronous: bool) -> None:
        self.failures: list[str] = []
        self.has_failed = False
        self._store = store
        self._is_asynchronous = is_asynchronous
        self._thread: threading.Thread | None = None
        self._is_done = threading.Event()
        self._is_done.set()

    @property
    def is_busy(self) -> bool:
        return not self._is_done.is_set()

    def waits(self, *, is_last: bool) -> bool:
        """Return whether `write` returns only when the checkpoint is written."""
        return is_last or not self._is_asynchronous

    def write(self, make: Callable[[], Contents], *, step: int, is_last: bool) -> None:
        """Write what `make` returns; it is called in the thread, and may fetch from the device.

        Waits for the one before. With `is_last`, waits for this one too.
        """
        self.wait()
        is_done = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(make, step, is_done, self.waits(is_last=is_last)),
            name=f"penstock checkpoint {step}",
            daemon=True,  # a second interrupt ends the process without it
        )
        self._thread.start()
        self._is_done = is_done
        if self.waits(is_last=is_last):
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; an interrupt gets through meanwhile.

        Not by `Thread.join`: up to Python 3.12 a thread whose join was interrupted counts as ended,
        and the next checkpoint would be written beside this one.
        """
        while not self._is_done.wait(timeout=0.1):
            pass
        # Two threads may wait: one that ends a process whose main thread is stuck waits too.
        thread, self._thread = self._thread, None
        if thread is not None:
            # It has nothing left but to end; were the process to end first, the libraries below
            # would abort it.
            thread.join()

    def _run(
        self,
        make: Callable[[], Contents],
        step: int,
        is_done: threading.Event,
        is_waited_for: bool,
    ) -> None:
        # Where training waits for the write, it should be quick. Elsewhere than on Linux a process
        # has one niceness for all its threads.
        if not is_waited_for and sys.platform == "linux":
            os.nice(_NICENESS)
        try:
            contents = make()
            self._store.write(contents)
            self.has_failed = False
        # In a thread nobody would see it: kept for whoever asks at the end.
        except Exception as error:
            line = f"checkpoint of global step {step}: {type(error).__name__}: {error}"
            self.failures.append(line)
            self.has_failed = True
            _LOGGER.error("NOT SAVED: %s", line)
        finally:
            contents = None  # its arrays may be the memory of the next snapshot
            is_done.set()

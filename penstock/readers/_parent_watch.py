"""Worker processes end with the process that started them, also where that is killed.

Python ends its workers when it exits by itself. When it is killed (SIGKILL, SIGTERM without a
handler, out of memory) they wait for work for ever, 465 MB each. So our own workers watch their
parent (`end_with_parent`). No code of ours runs in those that Grain or torch start: a guardian
watches the parent for them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock._guardian import Guardian

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_POLL_SECS = 1.0


def end_with_parent() -> None:
    """End this worker process as soon as the process that started it is gone.

    A thread waits for it. Linux could send a signal instead, but sends it when the *thread* ends
    that started the worker, and a reader's workers outlive the thread that read its first batch.
    """
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        while not wait([parent.sentinel], _POLL_SECS):
            # A process that the parent has forked may hold the other end of the sentinel.
            if os.name == "posix" and os.getppid() != parent.pid:
                break
        # Nobody waits for a result, and a mapper may never return: no handlers, no flushing.
        os._exit(1)

    threading.Thread(target=watch, name="penstock-parent-watch", daemon=True).start()


class _Workers:
    """The workers of this process, which a guardian watches; it ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guardian = Guardian("processes")
        self._watched: frozenset[int] = frozenset()

    def watch(self, numbers: Collection[int]) -> None:
        """Watch the processes of these numbers beside those watched, as long as they run."""
        import multiprocessing

        with self._lock:
            if not self._guardian.is_own:
                self._watched = frozenset()
            children = multiprocessing.active_children()
            running = {child.pid for child in children if child.pid is not None}
            watched = frozenset(running & (self._watched | set(numbers)))
            if watched != self._watched:
                if not self._guardian.is_own:
                    atexit.register(self._guardian.close)
                self._watched = watched
                self._guardian.watch(sorted(watched))


# One for each process: it must know of all workers when the process is gone.
_WORKERS = _Workers()


class WatchedChildren:
    """The processes that a reader of others' starts, which are to end with this process.

    They are the daemonic ones that appear after this object is made. multiprocessing ends those
    when their parent exits by itself; Grain's and torch's workers are daemonic.
    """

    def __init__(self) -> None:
        self._known = {child.pid for child in _children()}

    def watch_new(self) -> None:
        """Have the guardian watch the processes that have appeared. It costs 1 us if none has."""
        new = [child for child in _children() if child.pid not in self._known]
        if not new:
            return
        self._known |= {child.pid for child in new}
        if os.name == "posix":
            _WORKERS.watch([child.pid for child in new if child.daemon and child.pid])


def _children() -> list[BaseProcess]:
    # Not imported for readers that start no process.
    multiprocessing = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else multiprocessing.active_children()

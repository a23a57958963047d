"""Worker processes end with the process that started them, also where that is killed.

Python ends its workers when it exits by itself. When it is killed (SIGKILL, SIGTERM without a
handler, out of memory) they wait for work for ever, 465 MB each. So our own workers watch their
parent (`end_with_parent`). No code of ours runs in those that Grain or torch start: a guardian
watches the parent for them (`Guardian`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

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


# What the guardian runs: without penstock and site-packages it starts in 15 ms and holds 10 MB. It
# reads lists of processes, the last of which counts, until the parent is gone or closes the pipe.
_GUARDIAN = """
import os, select, signal, subprocess, sys

def end(number, handle):
    if handle is not None:  # it is of this very process, also where its number is used again
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return
    said = subprocess.run(["ps", "-o", "command=", "-p", str(number)], capture_output=True)
    if b"multiprocessing" in said.stdout:
        os.kill(number, signal.SIGKILL)

parent, poll_secs = int(sys.argv[1]), float(sys.argv[2])
watched, text = {}, b""
while True:
    is_gone = os.getppid() != parent  # asked first: it may have written before it was killed
    if not select.select([0], [], [], 0 if is_gone else poll_secs)[0]:
        if is_gone:
            break
        continue
    read = os.read(0, 1 << 16)
    if not read:
        break
    *lines, text = (text + read).split(b"\\n")
    for line in lines:
        named = {int(word) for word in line.split()}
        for number in watched.keys() - named:
            handle = watched.pop(number)
            if handle is not None:
                os.close(handle)
        for number in named - watched.keys():
            try:
                has_handles = hasattr(os, "pidfd_open")
                watched[number] = os.pidfd_open(number) if has_handles else None
            except OSError:
                pass
for number, handle in watched.items():
    try:
        end(number, handle)
    except OSError:
        pass
"""


class Guardian:
    """A small process that ends others when this process is gone.

    It starts with the first process it is to watch and ends with this one, like Python's own
    resource tracker. In a session of its own it outlives what kills a whole process group.

    >>> guardian = Guardian()
    >>> guardian.watch([])
    >>> guardian.release()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._watched: frozenset[int] = frozenset()

    def watch(self, numbers: Collection[int]) -> None:
        """Watch the processes of these numbers beside those watched, as long as they run."""
        import multiprocessing

        with self._lock:
            # A fork has its parent's guardian, which watches the parent.
            if self._owner != os.getpid():
                self._process, self._watched = None, frozenset()
            children = multiprocessing.active_children()
            running = {child.pid for child in children if child.pid is not None}
            watched = frozenset(running & (self._watched | set(numbers)))
            if watched != self._watched:
                self._watched = watched
                self._send(" ".join(map(str, sorted(watched))))

    def release(self) -> None:
        """End the guardian, and none of the processes it watches: this process exits by itself."""
        with self._lock:
            process, self._process, self._watched = self._process, None, frozenset()
            if process is None or self._owner != os.getpid():
                return
            with contextlib.suppress(OSError):
                _write(process, "")
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            process.wait()

    def _send(self, line: str) -> None:
        if self._process is None:
            self._process = self._start()
        # The guardian may have been killed itself: no worker depends on it.
        with contextlib.suppress(OSError):
            _write(self._process, line)

    def _start(self) -> subprocess.Popen[bytes]:
        self._owner = os.getpid()
        atexit.register(self.release)
        arguments = (str(self._owner), str(_POLL_SECS))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARDIAN, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # whoever reads ours waits for every process that holds it
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )


def _write(process: subprocess.Popen[bytes], line: str) -> None:
    process.stdin.write(line.encode() + b"\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]


# One for each process: it must know of all workers when the process is gone.
_GUARDIAN_OF_PROCESS = Guardian()


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
            _GUARDIAN_OF_PROCESS.watch([child.pid for child in new if child.daemon and child.pid])


def _children() -> list[BaseProcess]:
    # Not imported for readers that start no process.
    multiprocessing = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else multiprocessing.active_children()

"""What a process has started ends with it, also where it is killed.

Python ends its workers when it exits by itself. When it is killed (SIGKILL, SIGTERM without a
handler, out of memory) they wait for work for ever, 465 MB each. So our own workers watch their
parent (`end_with_parent`). No code of ours runs in those that Grain or torch start, nor in the
groups of a launcher: a `Guardian`, a small process of its own, watches the parent for them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

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
            if os.getppid() != parent.pid:
                break
        # Nobody waits for a result, and a mapper may never return: no handlers, no flushing.
        os._exit(1)

    threading.Thread(target=watch, name="penstock-parent-watch", daemon=True).start()


def warn_of_forked_workers(source: Any) -> None:
    """Warn of a torch `DataLoader` that starts its workers by forking this process."""
    if not hasattr(source, "multiprocessing_context") or not getattr(source, "num_workers", 0):
        return
    import multiprocessing

    # None is Python's default, which differs between systems and versions.
    context: Any = source.multiprocessing_context or multiprocessing
    if context.get_start_method() == "fork":
        warnings.warn(
            f"{type(source).__name__} got {source.num_workers} workers that are forked, expected "
            "spawned ones. JAX holds threads and locks that do not survive a fork: a worker may "
            "hang. Give it multiprocessing_context='spawn', or num_workers=0 and read in threads: "
            "readers.xmap_readers.",
            UserWarning,
            stacklevel=3,
        )


# Without penstock and site-packages it starts in 15 ms and holds 10 MB. It reads lists of numbers,
# the last of which counts, until the parent is gone or closes the pipe. Somebody who ends all
# processes of a job means the parent, which ends the guardian.
_PROGRAM = """
import os, select, signal, subprocess, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

def find_handle(number):
    # It is of this very process, also where its number is used again.
    return os.pidfd_open(number) if kind == "processes" and hasattr(os, "pidfd_open") else None

def end(number, handle):
    if kind == "groups":
        os.killpg(number, signal.SIGKILL)
    elif handle is not None:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    else:
        said = subprocess.run(["ps", "-o", "command=", "-p", str(number)], capture_output=True)
        if b"multiprocessing" in said.stdout:
            os.kill(number, signal.SIGKILL)

kind, parent, poll_secs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
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
                watched[number] = find_handle(number)
            except OSError:
                pass
for number, handle in watched.items():
    try:
        end(number, handle)
    except OSError:
        pass
"""


class Guardian:
    """A small process that kills others when this process is gone.

    They are workers of `multiprocessing`, or process groups. It starts with the first that it is to
    watch. In a session of its own it outlives what kills a whole process group.
    """

    def __init__(self, kind: Literal["processes", "groups"]) -> None:
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def is_own(self) -> bool:
        """Whether this process has started it: a fork has its parent's, that watches the parent."""
        return self._process is not None and self._owner == os.getpid()

    def watch(self, numbers: Iterable[int]) -> None:
        """Watch those of these numbers, and no others."""
        # There may be no room for a process, or no interpreter, and it may have been killed itself:
        # nothing depends on it.
        with contextlib.suppress(OSError, TypeError):
            if not self.is_own:
                self._process, self._owner = self._start(), os.getpid()
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(" ".join(map(str, numbers)).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it, and nothing that it watches."""
        is_own, process, self._process = self.is_own, self._process, None
        if process is None or not is_own:
            return
        # Before the pipe is closed, which would set it to work.
        process.kill()
        process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = (self._kind, str(os.getpid()), str(_POLL_SECS))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # whoever reads ours waits for every process that holds it
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )


class _Workers:
    """The workers of this process, which a guardian watches; it ends with this process."""

    lock = threading.Lock()
    guardian = Guardian("processes")
    watched: frozenset[int] = frozenset()


class WatchedChildren:
    """The processes that a reader of others' starts, which are to end with this process.

    They are the daemonic ones that appear after this object is made. multiprocessing ends those
    when their parent exits by itself; Grain's and torch's workers are daemonic.
    """

    def __init__(self) -> None:
        self._watched = {child.pid for child in _children()}

    def watch_new(self) -> None:
        """Have the guardian watch the processes that have appeared. It costs 1 us if none has."""
        new = [child for child in _children() if child.pid not in self._watched]
        if not new:
            return
        self._watched |= {child.pid for child in new}
        guardian, own = _Workers.guardian, {child.pid for child in new if child.daemon}
        with _Workers.lock:
            # It must know of all workers when this process is gone; those of before a fork are not.
            before = _Workers.watched if guardian.is_own else frozenset()
            # Asked again: another thread may have started workers, and had them watched, since.
            running = frozenset(child.pid for child in _children() if child.pid)
            watched = running & (before | own)
            if watched != before:
                if not guardian.is_own:
                    atexit.register(guardian.close)
                _Workers.watched = watched
                guardian.watch(sorted(watched))


def _children() -> list[BaseProcess]:
    # Not imported for readers that start no process.
    multiprocessing = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else multiprocessing.active_children()

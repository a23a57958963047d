"""A small process that kills others when this process is gone, also where this one is killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Literal

_POLL_SECS = 1.0

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

    It starts with the first that it is to watch. In a session of its own it outlives what kills a
    whole process group.

    Arguments:
      kind: what it watches: workers of `multiprocessing`, or process groups.

    >>> guardian = Guardian("groups")
    >>> guardian.watch([])
    >>> guardian.close()
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

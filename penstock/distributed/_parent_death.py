"""What a launcher has started ends with it, also where it is killed.

Two things see to it, as either may fail. Linux kills a process whose parent has died, where that
process asked for it (`begin_with`). And a guardian, a small process of its own, kills the process
groups when the launcher is gone (`Guardian`): with them what the processes have started themselves.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

_POLL_SECS = 1.0

# It becomes the program, so the number of the process stays, and what was asked for too. Not a
# `preexec_fn`, which may deadlock in a launching program with threads, such as those of JAX.
_BEGIN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: importing signal takes 5 ms
if os.getppid() != int(sys.argv[1]):  # it died before that
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"penstock launch: {sys.argv[2]!r} cannot be run: {error.strerror}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(126)
"""

# It reads lists of process groups, the last of which counts, until the launcher is gone or closes
# the pipe. Somebody who ends all processes of a job means the launcher, which ends it.
_GUARDIAN = """
import os, select, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
parent, poll_secs = int(sys.argv[1]), float(sys.argv[2])
groups, text = [], b""
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
    if lines:
        groups = [int(word) for word in lines[-1].split()]
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


def begin_with(words: Sequence[str]) -> list[str]:
    """Return the command of a program that ends with the process that starts it."""
    if sys.platform != "linux" or not sys.executable:
        return list(words)
    # Without site-packages: 20 ms.
    return [sys.executable, "-I", "-S", "-c", _BEGIN, str(os.getpid()), *words]


class Guardian:
    """A small process that kills process groups when this process is gone.

    >>> with Guardian() as guardian:
    ...     guardian.watch([])
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guardian:
        """Start it."""
        words = [sys.executable, "-I", "-S", "-c", _GUARDIAN, str(os.getpid()), str(_POLL_SECS)]
        # There may be no room for a process, or no interpreter: nothing depends on it.
        with contextlib.suppress(OSError, TypeError):
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # whoever reads ours waits for all who hold it
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # it outlives what kills our process group
            )
        return self

    def __exit__(self, *error: object) -> None:
        """End it, and nothing that it watches."""
        if self._process is None:
            return
        # Before the pipe is closed, which would set it to work.
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def watch(self, groups: Iterable[int]) -> None:
        """Watch the process groups of these numbers, and no others."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        # It may have been killed itself.
        with contextlib.suppress(OSError):
            self._process.stdin.write(" ".join(map(str, groups)).encode() + b"\n")
            self._process.stdin.flush()

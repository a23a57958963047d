"""What a launcher has started ends with it, also where it is killed.

Two things see to it, as either may fail. Linux kills a process whose parent has died, where that
process asked for it (`begin_with`). And a guardian, a small process of its own, kills the process
groups when the launcher is gone: with them what the processes have started themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# It becomes the program, so the number of the process stays, and what was asked for too. Not a
# `preexec_fn`, which may deadlock in a launching program with threads, such as those of JAX.
_BEGIN = """
import _signal, ctypes, os, sys  # importing signal itself takes 5 ms
ctypes.CDLL(None).prctl(1, _signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and so would the program
    _signal.signal(number, _signal.SIG_DFL)
if os.getppid() != int(sys.argv[1]):  # it died before that
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"penstock launch: {sys.argv[2]!r} cannot be run: {error.strerror}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(126)
"""


def begin_with(words: Sequence[str]) -> list[str]:
    """Return the command of a program that ends with the process that starts it."""
    if sys.platform != "linux" or not sys.executable:
        return list(words)
    # Without site-packages: 20 ms.
    return [sys.executable, "-I", "-S", "-c", _BEGIN, str(os.getpid()), *words]

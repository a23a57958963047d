"""Exit codes by which a process says whether its group should be started again."""

from __future__ import annotations

import signal

AGAIN = 75
"""Temporary failure, as `sysexits.h` numbers it: another process was lost."""

_DEATHS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT}


def is_again(code: int) -> bool:
    """Return whether an exit code asks for another try: 75, or a death that no program asked for.

    Arguments:
      code: as a shell has it (128 + signal) or as `subprocess` has it (-signal).

    >>> [is_again(code) for code in (75, -9, 137, 1, 143, 0)]
    [True, True, True, False, False, False]
    """
    return code == AGAIN or -code in _DEATHS or code - 128 in _DEATHS

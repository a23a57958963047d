"""What the exit code of one process of a group means for the group.

| code | meaning | start again |
|---|---|---|
| 0 | it finished | no |
| 1 | an error in the program: it would only come again | no |
| 2 | the program was called wrongly | no |
| 75 | `AGAIN`: another process was lost, or this one was stuck | yes |
| 130, 143 | Ctrl-C, SIGTERM: somebody wants it to end | no |
| 134, 135, 137, 139 | SIGABRT, SIGBUS, SIGKILL, SIGSEGV: memory, hardware, JAX's abort | yes |
"""

from __future__ import annotations

import signal

AGAIN = 75
"""The exit code that asks for the group to be started again: `EX_TEMPFAIL` of sysexits.h."""

_OF_A_SIGNAL = 128
_LOST = (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV)


def is_again(code: int) -> bool:
    """Say whether a group is started again after a code, of `subprocess` or of a shell.

    >>> [is_again(code) for code in (0, 1, 2, 75, -9, 137, 143)]
    [False, False, False, True, True, True, False]
    """
    return code == AGAIN or -code in _LOST or code - _OF_A_SIGNAL in _LOST


def to_status(code: int) -> int:
    """Return a code of `subprocess` as a shell has it: 137 for -9."""
    return _OF_A_SIGNAL - code if code < 0 else code


def describe(code: int) -> str:
    """Return what became of a process, to be read after its name.

    >>> describe(1), describe(-9), describe(-500)
    ('ended with code 1', 'was killed by SIGKILL', 'was killed by signal 500')
    """
    if code >= 0:
        return f"ended with code {code}"
    names = {member.value: member.name for member in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"

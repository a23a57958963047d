"""XLA's alarm about slow compilations, kept out of what a person reads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# XLA logs the alarm as an error, between two lines of asterisks, and asks to file a bug. JAX 0.10.2
# has no flag for it, and `TF_CPP_MIN_LOG_LEVEL=3` would hide real errors too. A process of its own
# passes everything else on at once, and so also the last words of one that crashes: a thread would
# lose them.
_FILTER = r"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stars = patience = 0
for line in sys.stdin.buffer:
    if b"slow_operation_alarm.cc" in line:
        stars, patience = 2, 100
    elif patience and stars:
        stars -= line.startswith(b"*****")
        patience -= 1
    else:
        os.write(2, line)
"""


_PATIENCE_SECS = 5.0


@contextlib.contextmanager
def leave_out_alarm() -> Iterator[None]:
    """Leave the alarm out of standard error."""
    # Without site-packages and variables of the environment it starts at once.
    words = [sys.executable, "-S", "-E", "-c", _FILTER]
    try:
        original = os.dup(2)
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    # Standard error is closed, or there is no room for a process.
    except OSError:
        yield
        return
    assert process.stdin is not None
    # The descriptor, as XLA does not write through `sys.stderr`.
    os.dup2(process.stdin.fileno(), 2)
    process.stdin.close()
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        # It ends with the last that writes to it, which may be a reader's process.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECS)

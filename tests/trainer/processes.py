"""Scripts in processes of their own: how they are started, signalled and waited for."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import compiling

TIMEOUT_SECS = 120
ROOT = Path(__file__).parents[2]


def started(module: str, *arguments: object, num_devices: int = 1) -> subprocess.Popen[str]:
    """Start `python -m module arguments`, on so many CPU devices, its output read by line."""
    environment = {
        **os.environ,
        "XLA_FLAGS": compiling.xla_flags(num_devices),
    }
    command: Sequence[str] = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines that a process prints, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, further output and errors of a process that ends by itself."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # with a stack of every thread
        output, errors = process.communicate()
        raise AssertionError(f"the process hung:\n{output}\n{errors}") from None
    return process.returncode, output, errors

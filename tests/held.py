"""What a process holds, for tests that nothing is left open."""

import contextlib
import os
import threading


def threads(name: str) -> set[threading.Thread]:
    """Return the threads whose names begin so; those of earlier tests may still be ending."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(name)}


def open_files() -> set[tuple[str, str]]:
    """Return the open descriptors of this process, each with what it is open on (on Linux)."""
    files = set()
    with contextlib.suppress(FileNotFoundError):  # no /proc
        for name in os.listdir("/proc/self/fd"):
            # Another thread may close one meanwhile, as that of the list itself is by now.
            with contextlib.suppress(FileNotFoundError):
                files.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return files

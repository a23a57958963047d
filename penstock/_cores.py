"""The cores that a process may use."""

import os


def num_usable_cores() -> int:
    """Return how many cores this process may use, which may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # macOS and Windows have no such call: all cores of the machine.
    return os.cpu_count() or 1

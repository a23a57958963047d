"""Large pages for the arrays of a program on CPU: the C library is told when a process starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TUNABLE = "glibc.malloc.hugetlb"
_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def find_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to start a process with; none where they would change nothing.

    XLA takes a step's memory from the C library and gives it back, and Linux maps it anew in pages
    of 4 kB: a fifth to a third of the processor time of a step on CPU (`penstock docs
    memory_and_precision`). From 2.35 on glibc asks for pages of 2 MB where `GLIBC_TUNABLES` says
    so; others pass over it. Whoever has set that tunable has chosen, and another allocator has ways
    of its own.
    """
    tunables = environment.get("GLIBC_TUNABLES", "")
    if _TUNABLE in tunables or environment.get("LD_PRELOAD"):
        return {}
    try:
        # "always" needs no asking, "never" would refuse.
        if "[madvise]" not in _SWITCH.read_text():
            return {}
    except OSError:
        return {}
    return {"GLIBC_TUNABLES": ":".join([*filter(None, [tunables]), f"{_TUNABLE}=1"])}


def restart(words: Sequence[str]) -> None:
    """Start this process anew with the variables, where there are some.

    It keeps its number, its files and its words. To be called first of all: what it has computed is
    lost. A process whose own words are others, a worker of Ray's, is left as it is.
    """
    variables = find_variables()
    is_own = sys.orig_argv[-len(words) :] == list(words)
    if not variables or not sys.executable or not is_own:
        return
    try:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **variables})
    # Slower, and nothing else.
    except OSError:
        return

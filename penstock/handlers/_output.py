"""Where handlers print: what several processes would all say is said once."""

from __future__ import annotations

import functools
import os
import sys
from typing import TextIO

import jax


def choose_output(file: TextIO | None) -> TextIO:
    """Return a handler's own file, else stdout on the first process and nowhere on the others."""
    if file is not None:
        return file
    return _nowhere() if jax.process_index() else sys.stdout


@functools.cache
def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")

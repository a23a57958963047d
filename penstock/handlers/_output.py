"""Where handlers print: what several processes would all say is said once."""

from __future__ import annotations

import io
import sys
from typing import Any, TextIO

import jax


def choose_output(file: TextIO | None) -> TextIO:
    """Return a handler's own file, else stdout on the first process and nowhere on the others."""
    if file is not None:
        return file
    return _NOWHERE if jax.process_index() else sys.stdout


class _Nowhere(io.TextIOBase):
    """A file that keeps nothing."""

    def write(self, text: str, /) -> int:
        """Drop a text."""
        return len(text)


_NOWHERE: Any = _Nowhere()

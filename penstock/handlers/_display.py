"""Where handlers print, and what a notebook shows."""

from __future__ import annotations

import base64
import importlib
import io
import sys
from collections.abc import Callable
from typing import Any, TextIO

import jax


def choose_output(file: TextIO | None) -> TextIO:
    """Return a handler's own file, else stdout on the first process and nowhere on the others."""
    if file is not None:
        return file
    return NOWHERE if jax.process_index() else sys.stdout


class _Nowhere(io.TextIOBase):
    """A file that keeps nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


NOWHERE: Any = _Nowhere()


def find_display() -> Callable[..., Any] | None:
    """Return IPython's `display` where this process is a notebook's kernel; None elsewhere."""
    # It is loaded in a kernel; importing it would take half a second elsewhere.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # IPython on a terminal has none
        return None
    return importlib.import_module("IPython.display").display


class CellOutput:
    """What a cell shows of one thing, by IPython's `display`: each call of `show` replaces it."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, text: str, png: bytes | None = None) -> None:
        """Show a text, or a picture whose text is for readers without pictures."""
        data = {"text/plain": text}
        if png is not None:
            data["image/png"] = base64.b64encode(png).decode()
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

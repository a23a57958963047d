"""`repr` for one line, however large the value."""

from __future__ import annotations

import reprlib

import numpy as np


class _ShortRepr(reprlib.Repr):
    """`repr` that fits a line: few items, numbers of four digits, arrays as dtype and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = 100  # characters of an exception

    def repr_ndarray(self, value: np.ndarray, level: int) -> str:
        return f"{value.dtype}{list(value.shape)}"

    def repr_float(self, value: float, level: int) -> str:
        return f"{value:.4g}"


shorten = _ShortRepr().repr

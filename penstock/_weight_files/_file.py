"""What reading a weight file returns, and the error where it cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

Format = Literal["tf_slim", "keras", "torch", "paddle", "numpy"]


class WeightFileError(ValueError):
    """A weight file cannot be read; its message lacks the path, which `read_weights` adds."""


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """The arrays of a weight file, under the names that its writer gave them.

    Arguments:
      path: the file, or the prefix of a TensorFlow checkpoint.
      format: whose names and layouts the arrays have. A `.safetensors` file is `"torch"`, a plain
        pickle of arrays `"paddle"`; a `.npz` says nothing of its writer and is `"numpy"`.
      arrays: name -> array, in the file's order. An array may be read-only, or strided.
      notes: what was chosen or left out, one sentence for each choice.
    """

    path: Path
    format: Format
    arrays: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Keep a view that cannot be written to."""
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))

"""How arrays of TensorFlow, Keras and torch are laid out as parameters are here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

Layout = Literal["tensorflow", "torch", "paddle"]
"""Whose kernels and dense weights an array of a file is laid out as."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Say what of a weight file a parameter is made of: arrays joined, and a part cut out.

    Arguments:
      names: the name in the file, or several whose arrays are joined.
      part: number and count of equal parts, such as `(1, 3)` for the keys of a joint projection of
        queries, keys and values.
      axis: the file's axis that is joined and cut.
      transpose: lay the array out as here; False if the file has it so, as GPT-2's dense weights.

    >>> Entry("h.0.attn.c_attn.weight", part=(2, 3), axis=1, transpose=False).take(
    ...     {"h.0.attn.c_attn.weight": np.arange(6.0)[None]}
    ... )
    array([[4., 5.]])
    """

    names: str | Sequence[str]
    part: tuple[int, int] | None = None
    axis: int = 0
    transpose: bool = True

    @property
    def parts(self) -> tuple[str, ...]:
        """The names in the file."""
        return (self.names,) if isinstance(self.names, str) else tuple(self.names)

    def take(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the array that a file's arrays make, in the file's layout.

        Raises:
          ValueError: the arrays cannot be joined, or not be cut into equal parts.
        """
        parts = [np.asarray(arrays[name]) for name in self.parts]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)
        if self.part is None:
            return array
        number, count = self.part
        return np.split(array, count, self.axis)[number]


def lay_out(
    array: np.ndarray,
    path: str,
    shape: tuple[int, ...],
    layout: Layout,
    *,
    is_table: bool = False,
) -> np.ndarray:
    """Return an array of a weight file as the parameter at `path` has it, contiguous float32.

    The result has another shape than `shape` where the file is of another network.

    Arguments:
      is_table: whether the parameter is a matrix that is no dense weight, such as an embedding's.
    """
    if layout == "tensorflow":
        array = _from_tf(array, shape)
    elif not is_table:
        # Paddle's kernels are torch's, its dense weights [in, out].
        as_in_torch = array.T if layout == "paddle" and array.ndim == 2 else array
        array = _from_torch(as_in_torch, path, shape)
    # Not `ascontiguousarray`, which makes a scalar an array of one.
    return np.asarray(array, np.float32, order="C")


def _from_torch(array: np.ndarray, path: str, shape: tuple[int, ...]) -> np.ndarray:
    # Dense weights over a flattened image, where we have a convolution as large as the image.
    if len(shape) == 4 and array.ndim == 2:
        height, width, num_in, num_out = shape
        if array.shape == (num_out, num_in * height * width):
            array = array.reshape(num_out, num_in, height, width)
    # A convolution of 1x1 where we have a dense layer.
    if len(shape) == 2 and array.ndim == 4 and array.shape[2:] == (1, 1):
        array = array[:, :, 0, 0]
    if array.ndim == 4:
        # Kernels are [out, in, height, width] there, depthwise ones [C, 1, height, width].
        axes = (2, 3, 0, 1) if path.endswith("/depthwise") else (2, 3, 1, 0)
        return array.transpose(axes)
    # Dense weights are [out, in] there.
    return array.T if array.ndim == 2 else array


def _from_tf(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    # TF-Slim makes some dense layers of convolutions of 1x1.
    if array.ndim == 4 and len(shape) == 2 and array.shape[:2] == (1, 1):
        return array.reshape(array.shape[2:])
    # Keras has dense layers over a flattened image where we have convolutions.
    if array.ndim == 2 and len(shape) == 4 and array.shape == (math.prod(shape[:3]), shape[3]):
        return array.reshape(shape)
    return array

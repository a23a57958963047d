"""How arrays of TensorFlow, Keras and torch are laid out as parameters are here."""

from __future__ import annotations

import math

import numpy as np

from penstock._weight_files import Format


def lay_out(array: np.ndarray, path: str, shape: tuple[int, ...], format: Format) -> np.ndarray:
    """Return an array of a weight file as the parameter at `path` has it, contiguous float32.

    The result has another shape than `shape` where the file is of another network.
    """
    array = np.asarray(array)
    laid_out = _from_torch(array, path, shape) if format == "torch" else _from_tf(array, shape)
    return np.ascontiguousarray(laid_out, np.float32)


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

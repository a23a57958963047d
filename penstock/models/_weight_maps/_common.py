"""What the name maps share: the names of the parameters of one layer, and how they are laid out."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from penstock._weight_files import KERAS_VARIABLES

_SLIM: Mapping[str, str] = MappingProxyType(
    {
        "conv/w": "weights",
        "conv/b": "biases",
        "conv/depthwise": "depthwise_weights",
        "fc/w": "weights",
        "fc/b": "biases",
        "norm/scale": "BatchNorm/gamma",
        "norm/bias": "BatchNorm/beta",
        "norm/mean": "BatchNorm/moving_mean",
        "norm/variance": "BatchNorm/moving_variance",
    }
)


_KERAS_NORM: Mapping[str, str] = MappingProxyType(
    {
        "scale": "gamma",
        "bias": "beta",
        "mean": "moving_mean",
        "variance": "moving_variance",
    }
)
_TORCH_NORM: Mapping[str, str] = MappingProxyType(
    {"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
)


def slim_name(network: str, path: str) -> str:
    """Return TF-Slim's name of a parameter or statistic.

    Arguments:
      network: the scope of the network, e.g. `"InceptionV3"`.
      path: ours, e.g. `"Mixed_5b/Branch_0/Conv2d_0a_1x1/conv/w"`.
    """
    *layer, kind, leaf = path.split("/")
    # A batch norm of its own, as before a unit of ResNet v2, has no scope inside its scope.
    own = _SLIM.get(f"{kind}/{leaf}") or f"{kind}/{_KERAS_NORM[leaf]}"
    return "/".join([network, *layer, own])


def keras_conv(path: str, conv: str, norm: str) -> dict[str, str]:
    """Return Keras's names of a convolution without a bias and its batch norm without a scale."""
    return {
        f"{path}/conv/w": f"{conv}/kernel",
        f"{path}/norm/bias": f"{norm}/beta",
        f"{path}/norm/mean": f"{norm}/moving_mean",
        f"{path}/norm/variance": f"{norm}/moving_variance",
    }


def torch_conv(path: str, conv: str, norm: str) -> dict[str, str]:
    """Return torch's names of a convolution without a bias and its batch norm without a scale."""
    return {
        f"{path}/conv/w": f"{conv}.weight",
        f"{path}/norm/bias": f"{norm}.bias",
        f"{path}/norm/mean": f"{norm}.running_mean",
        f"{path}/norm/variance": f"{norm}.running_var",
    }


def keras_layer(path: str, layer: str) -> dict[str, str]:
    """Return Keras's names of a kernel and a bias."""
    return {f"{path}/w": f"{layer}/kernel", f"{path}/b": f"{layer}/bias"}


def keras_norm(path: str, layer: str) -> dict[str, str]:
    """Return Keras's names of a batch norm with a scale."""
    return {f"{path}/{leaf}": f"{layer}/{name}" for leaf, name in _KERAS_NORM.items()}


def torch_layer(path: str, layer: str) -> dict[str, str]:
    """Return torch's names of a kernel and a bias."""
    return {f"{path}/w": f"{layer}.weight", f"{path}/b": f"{layer}.bias"}


def torch_norm(path: str, layer: str) -> dict[str, str]:
    """Return torch's names of a batch norm with a scale."""
    return {f"{path}/{leaf}": f"{layer}.{name}" for leaf, name in _TORCH_NORM.items()}


def keras_renumbered(names: Mapping[str, str], found: Iterable[str]) -> dict[str, str]:
    """Return Keras's names with the automatic numbers that a file has.

    Keras numbers the layers of a process: the first `Conv2D` is `conv2d` in its first model, may be
    `conv2d_94` in its second, and was `conv2d_1` in Keras 2. So numbers count from the least one.

    Arguments:
      names: path -> name, where each kind of numbered layer begins with the one without a number.
      found: the names in the file.
    """
    numbers: dict[str, list[int]] = {}
    for name in found:
        kind, number = _numbered(name)
        numbers.setdefault(kind, []).append(number)
    kinds = {name.partition("/")[0] for name in names.values()}
    first = {kind: min(numbers[kind]) for kind in kinds if kind in numbers}
    renamed = {}
    for path, name in names.items():
        kind, number = _numbered(name)
        layer, _, variable = name.partition("/")
        layer = f"{kind}_{number + first[kind]}" if first.get(kind) else layer
        renamed[path] = f"{layer}/{variable}"
    return renamed


def keras_by_number(names: Mapping[str, str], found: Container[str]) -> dict[str, str]:
    """Return Keras's names with the numbers that a file has in place of a variable's name.

    A `.weights.h5` numbers the variables of a layer, and says nothing of a batch norm of three:
    whether the scale is missing or the shift. The network, which is known here, says it.

    >>> names = {"norm/bias": "bn/beta", "norm/mean": "bn/moving_mean"}
    >>> keras_by_number(names, {"bn/0", "bn/1"})
    {'norm/bias': 'bn/0', 'norm/mean': 'bn/1'}

    Arguments:
      names: path -> name.
      found: the names in the file.
    """
    order = KERAS_VARIABLES["batchnormalization"]
    layers: dict[str, list[str]] = {}
    for name in names.values():
        layer, _, variable = name.rpartition("/")
        layers.setdefault(layer, []).append(variable)
    renamed = {}
    for layer, variables in layers.items():
        if set(variables) <= set(order) and f"{layer}/{len(variables)}" not in found:
            in_order = sorted(variables, key=order.index)
            numbers = {f"{layer}/{variable}": f"{layer}/{n}" for n, variable in enumerate(in_order)}
            renamed.update({a: b for a, b in numbers.items() if a not in found and b in found})
    return {path: renamed.get(name, name) for path, name in names.items()}


def _numbered(name: str) -> tuple[str, int]:
    """Return the kind and number of a layer: `("conv2d", 3)` for `conv2d_3/kernel`."""
    layer = name.partition("/")[0]
    found = re.fullmatch(r"(.*?)_(\d+)", layer)
    return (found[1], int(found[2])) if found else (layer, 0)


def from_torch(path: str, array: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return an array of torch's laid out as the parameter at `path` is.

    Kernels `[out, in, height, width]` become `[height, width, in, out]`, depthwise ones `[C * M, 1,
    height, width]` become `[height, width, C, M]` for M of 1, and dense weights are transposed.
    Dense weights over a flattened image, `[out, in * height * width]`, become the kernel
    `[height, width, in, out]` if the parameter, by its `shape`, is one; kernels of 1x1 become dense
    weights likewise.
    """
    if shape is not None and len(shape) == 4 and array.ndim == 2:
        height, width, num_in, num_out = shape
        if array.shape == (num_out, num_in * height * width):
            array = array.reshape(num_out, num_in, height, width)
    if shape is not None and len(shape) == 2 and array.ndim == 4 and array.shape[2:] == (1, 1):
        array = array[:, :, 0, 0]
    if array.ndim == 4:
        return (
            array.transpose(2, 3, 0, 1)
            if path.endswith("/depthwise")
            else array.transpose(2, 3, 1, 0)
        )
    return array.T if array.ndim == 2 else array


def from_tensorflow(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of TF-Slim's or Keras's laid out as a parameter of `shape` is.

    Both have our layout, but that TF-Slim makes some dense layers of convolutions of 1x1, whose
    kernels `[1, 1, in, out]` lose their first two axes, and that Keras has dense layers where we
    have convolutions, whose weights `[height * width * in, out]` get three axes for their first.
    """
    if array.ndim == 4 and len(shape) == 2 and array.shape[:2] == (1, 1):
        return array.reshape(array.shape[2:])
    if array.ndim == 2 and len(shape) == 4 and array.shape == (math.prod(shape[:3]), shape[3]):
        return array.reshape(shape)
    return array

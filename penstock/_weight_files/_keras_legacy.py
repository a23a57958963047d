"""The HDF5 layout of Keras 1 and 2, and of keras.applications: layers list their weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from penstock._weight_files._file import WeightFileError
from penstock._weight_files._hdf5 import Tree

LAYERS = "layer_names"
WEIGHTS = "weight_names"
OPTIMIZER = "optimizer_weights"

# Keras 1 named a variable `<layer>_W_1:0`; its running_std held the variance.
KERAS_1: Mapping[str, str] = MappingProxyType(
    {
        "W": "kernel",
        "b": "bias",
        "gamma": "gamma",
        "beta": "beta",
        "running_mean": "moving_mean",
        "running_std": "moving_variance",
    }
)


def find_root(tree: Tree) -> str | None:
    """Return the path of the group that lists the layers, with a slash: `/` for the file itself."""
    # The file of a whole model has its weights in a group.
    for group in ("", "model_weights"):
        if group in tree.groups and tree.read_names(group, LAYERS) is not None:
            return f"{group}/"
    return None


def read(tree: Tree, root: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the arrays as `<layer>/<variable>`, in the model's order, and notes."""
    root = root.lstrip("/")
    arrays = {}
    for layer in tree.read_names(root.rstrip("/"), LAYERS) or []:
        group = root + layer
        weights = tree.read_names(group, WEIGHTS) if group in tree.groups else None
        if weights is None:
            raise WeightFileError(
                f"got no group {group!r} with the names of its weights, expected one, as the file "
                "lists this layer. It is cut off or damaged: download it again."
            )
        for weight, name in zip(weights, name_variables(layer, weights), strict=True):
            if name in arrays:
                raise WeightFileError(
                    f"got two weights {name!r}, expected one of a name. It is damaged: download it "
                    "again."
                )
            arrays[name] = tree.read_array(f"{group}/{weight}")
    left = (f"left out the group {OPTIMIZER!r}",) if OPTIMIZER in tree.groups else ()
    return arrays, left


def name_variables(layer: str, weights: list[str]) -> list[str]:
    """Return `<layer>/<variable>` for the weights of a layer.

    >>> name_variables("conv1", ["conv1_2/kernel:0", "conv1_2/bias:0"])
    ['conv1/kernel', 'conv1/bias']
    >>> name_variables("fc6", ["fc6_W_1:0", "fc6_b_1:0"])
    ['fc6/kernel', 'fc6/bias']
    >>> name_variables("head", ["head/hidden/kernel", "head/out/kernel"])
    ['head/hidden/kernel', 'head/out/kernel']
    """
    parts = [re.sub(r":\d+$", "", weight).rpartition("/") for weight in weights]
    scopes = [_cut_layer(layer, scope) for scope, _, _ in parts]
    variables = [_rename_variable(layer, name) for _, _, name in parts]
    # A scope that all weights share and that does not begin with the layer's name is TensorFlow's
    # name of the model.
    foreign = {scope for scope, (full, _, _) in zip(scopes, parts, strict=True) if scope == full}
    if len(foreign) == 1 and len(set(scopes)) == 1 and max(Counter(variables).values()) == 1:
        scopes = [""] * len(scopes)
    if "depthwise_kernel" in variables and "pointwise_kernel" not in variables:
        # Keras 3 calls a depthwise convolution's weights `kernel`; only a separable one has both.
        variables = [name.replace("depthwise_kernel", "kernel") for name in variables]
    return [
        "/".join(part for part in (layer, scope, name) if part)
        for scope, name in zip(scopes, variables, strict=True)
    ]


def _cut_layer(layer: str, scope: str) -> str:
    """Return the part of a weight's scope that says more than the layer's name."""
    if re.fullmatch(rf"{re.escape(layer)}(_\d+)?", scope):
        return ""
    return scope.removeprefix(f"{layer}/")


def _rename_variable(layer: str, name: str) -> str:
    """Return a variable's name in Keras 3's terms."""
    old = re.fullmatch(rf"{re.escape(layer)}_({'|'.join(KERAS_1)})(_\d+)?", name)
    return KERAS_1[old[1]] if old else name

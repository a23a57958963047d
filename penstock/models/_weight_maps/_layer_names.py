"""What the parameters of one layer are called elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

KERNEL = ("w",)
LAYER = ("w", "b")
NORM = ("scale", "bias", "mean", "variance")
SHIFT = NORM[1:]
"""Of a batch norm without a scale."""

KERAS_NORM: Mapping[str, str] = dict(
    zip(NORM, ("gamma", "beta", "moving_mean", "moving_variance"), strict=True)
)
_KERAS = {"w": "/kernel", "b": "/bias"} | {leaf: f"/{name}" for leaf, name in KERAS_NORM.items()}
_TORCH = {
    "w": ".weight",
    "b": ".bias",
    **dict(zip(NORM, (".weight", ".bias", ".running_mean", ".running_var"), strict=True)),
}
_SLIM = {
    "conv/w": "weights",
    "conv/b": "biases",
    "conv/depthwise": "depthwise_weights",
    "fc/w": "weights",
    "fc/b": "biases",
    **{f"norm/{leaf}": f"BatchNorm/{name}" for leaf, name in KERAS_NORM.items()},
}


def slim_name(network: str, path: str) -> str:
    """Return TF-Slim's name of a parameter or statistic, below the scope of its network."""
    *layer, kind, leaf = path.split("/")
    # A batch norm that stands alone, as before a unit of ResNet v2, has no scope inside its scope.
    own = _SLIM.get(f"{kind}/{leaf}") or f"{kind}/{KERAS_NORM[leaf]}"
    return "/".join([network, *layer, own])


def _name_leaves(
    leaf_names: Mapping[str, str], path: str, layer: str, leaves: Sequence[str] = LAYER
) -> dict[str, str]:
    return {f"{path}/{leaf}": layer + leaf_names[leaf] for leaf in leaves}


keras = functools.partial(_name_leaves, _KERAS)
"""Return Keras's names of a layer's leaves, by default of a kernel and a bias."""
torch = functools.partial(_name_leaves, _TORCH)
"""The same of torch."""


def _name_conv(
    leaf_names: Mapping[str, str], path: str, conv: str, norm: str, leaves: Sequence[str] = NORM
) -> dict[str, str]:
    kernel = _name_leaves(leaf_names, f"{path}/conv", conv, KERNEL)
    return kernel | _name_leaves(leaf_names, f"{path}/norm", norm, leaves)


keras_conv = functools.partial(_name_conv, _KERAS)
"""Return Keras's names of a convolution and its batch norm, by default one with a scale."""
torch_conv = functools.partial(_name_conv, _TORCH)
"""The same of torch."""

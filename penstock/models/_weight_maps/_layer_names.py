"""What the parameters of one layer are called elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KERAS_NORM: Mapping[str, str] = MappingProxyType(
    {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "variance": "moving_variance"}
)
_TORCH_NORM: Mapping[str, str] = MappingProxyType(
    {"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
)
_SLIM: Mapping[str, str] = MappingProxyType(
    {
        "conv/w": "weights",
        "conv/b": "biases",
        "conv/depthwise": "depthwise_weights",
        "fc/w": "weights",
        "fc/b": "biases",
        **{f"norm/{leaf}": f"BatchNorm/{name}" for leaf, name in KERAS_NORM.items()},
    }
)


def slim_name(network: str, path: str) -> str:
    """Return TF-Slim's name of a parameter or statistic.

    Arguments:
      network: the scope of the network, e.g. `"InceptionV3"`.
      path: ours, e.g. `"Mixed_5b/Branch_0/Conv2d_0a_1x1/conv/w"`.
    """
    *layer, kind, leaf = path.split("/")
    # A batch norm that stands alone, as before a unit of ResNet v2, has no scope inside its scope.
    own = _SLIM.get(f"{kind}/{leaf}") or f"{kind}/{KERAS_NORM[leaf]}"
    return "/".join([network, *layer, own])


def keras_layer(path: str, layer: str) -> dict[str, str]:
    """Return Keras's names of a kernel and a bias."""
    return {f"{path}/w": f"{layer}/kernel", f"{path}/b": f"{layer}/bias"}


def keras_norm(path: str, layer: str, *, has_scale: bool = True) -> dict[str, str]:
    """Return Keras's names of a batch norm."""
    # The scale is the first of them.
    leaves = list(KERAS_NORM)[not has_scale :]
    return {f"{path}/{leaf}": f"{layer}/{KERAS_NORM[leaf]}" for leaf in leaves}


def keras_conv(path: str, conv: str, norm: str) -> dict[str, str]:
    """Return Keras's names of a convolution without a bias and its batch norm without a scale."""
    return {
        f"{path}/conv/w": f"{conv}/kernel",
        **keras_norm(f"{path}/norm", norm, has_scale=False),
    }


def torch_layer(path: str, layer: str) -> dict[str, str]:
    """Return torch's names of a kernel and a bias."""
    return {f"{path}/w": f"{layer}.weight", f"{path}/b": f"{layer}.bias"}


def torch_norm(path: str, layer: str, *, has_scale: bool = True) -> dict[str, str]:
    """Return torch's names of a batch norm."""
    leaves = list(_TORCH_NORM)[not has_scale :]
    return {f"{path}/{leaf}": f"{layer}.{_TORCH_NORM[leaf]}" for leaf in leaves}


def torch_conv(path: str, conv: str, norm: str, *, has_scale: bool) -> dict[str, str]:
    """Return torch's names of a convolution without a bias and its batch norm."""
    return {
        f"{path}/conv/w": f"{conv}.weight",
        **torch_norm(f"{path}/norm", norm, has_scale=has_scale),
    }

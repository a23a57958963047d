"""What the parameters of the MobileNets are called in TF-Slim, Keras and timm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from penstock.models._mobilenet import name_bottleneck
from penstock.models._weight_maps._layer_names import NORM, keras, slim_name, torch, torch_conv
from penstock.models.mobilenet_v1 import LAYERS
from penstock.models.mobilenet_v2 import BOTTLENECKS
from penstock.models.mobilenet_v3 import VARIANTS, Row

_SQUEEZE_EXCITE = {"squeeze": "Conv", "expand": "Conv_1"}
_LAST = "Logits/Conv2d_1c_1x1/fc"


def slim_name_v3(model_name: str, path: str) -> str:
    for ours, theirs in _SQUEEZE_EXCITE.items():
        path = path.replace(f"/squeeze_excite/{ours}/", f"/squeeze_excite/{theirs}/conv/")
    return slim_name("MobilenetV3", path)


def keras_v1(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' MobileNet, by its `alpha`."""
    names = _keras_conv("Conv2d_0", "conv1", "_bn")
    for number in range(1, len(LAYERS)):
        names |= _keras_conv(f"Conv2d_{number}_depthwise", f"conv_dw_{number}", "_bn")
        names |= _keras_conv(f"Conv2d_{number}_pointwise", f"conv_pw_{number}", "_bn")
    return names | keras(_LAST, "conv_preds")


def keras_v2(model_name: str, last: str = "predictions") -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' MobileNetV2, by its `alpha`."""
    names = {"Conv/conv/w": "Conv1/kernel"} | keras("Conv/norm", "bn_Conv1", NORM)
    for number in range(sum(count for *_, count, _ in BOTTLENECKS)):
        path = name_bottleneck(number)
        layer = f"block_{number}" if number else path
        for kind in _list_convs(number):
            names |= _keras_conv(f"{path}/{kind}", f"{layer}_{kind}", "_BN")
    return names | _keras_conv("Conv_1", "Conv_1", "_bn") | keras(_LAST, last)


def keras_v3(
    model_name: str, conv: str = "conv", last: str = "logits", below: str = "_", norm: str = "_bn"
) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' MobileNetV3Large and Small."""
    names = _keras_conv("Conv", conv, norm) | _keras_conv("Conv_1", f"{conv}_1", norm)
    for block in _list_bottlenecks(model_name):
        for kind in block.convs:
            names |= _keras_conv(f"{block.path}/{kind}", f"{block.path}{below}{kind}", norm)
        if block.row.has_squeeze:
            layer = f"{block.path}{below}squeeze_excite{below}{conv}"
            names |= keras(f"{block.path}/squeeze_excite/squeeze", layer)
            names |= keras(f"{block.path}/squeeze_excite/expand", f"{layer}_1")
    names |= keras("Conv_2/conv", f"{conv}_2")
    return names | keras(_LAST, last)


def _keras_conv(path: str, layer: str, norm: str) -> dict[str, str]:
    """Return Keras's names of a convolution and its batch norm, `norm` being its suffix."""
    leaf = _kernel_leaf(path)
    return {f"{path}/conv/{leaf}": f"{layer}/kernel"} | keras(f"{path}/norm", layer + norm, NORM)


# timm's own weights do not coincide, as it pads evenly where it strides; its `tf_` ones, which are
# TF-Slim's, do.
def torch_v3(model_name: str) -> dict[str, str]:
    """Return path -> name in timm's `tf_mobilenetv3_large_100`, `_small_100`, `_minimal_100`."""
    names = torch_conv("Conv", "conv_stem", "bn1")
    # timm numbers stages, which are runs of bottlenecks of one depth.
    stages = itertools.groupby(_list_bottlenecks(model_name), key=lambda block: block.row.depth)
    stage = 0
    for stage, (_, blocks) in enumerate(stages, 1):
        for number, block in enumerate(blocks):
            names |= _timm_bottleneck(block, f"blocks.{stage - 1}.{number}")
    names |= torch_conv("Conv_1", f"blocks.{stage}.0.conv", f"blocks.{stage}.0.bn1")
    return names | torch("Conv_2/conv", "conv_head") | torch(_LAST, "classifier")


def _timm_bottleneck(block: _Bottleneck, prefix: str) -> dict[str, str]:
    names: dict[str, str] = {}
    kernels = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
    if "expand" not in block.convs:
        kernels["project"] = "conv_pw"
    for number, kind in enumerate(block.convs, 1):
        path = f"{block.path}/{kind}"
        names[f"{path}/conv/{_kernel_leaf(path)}"] = f"{prefix}.{kernels[kind]}.weight"
        names |= torch(f"{path}/norm", f"{prefix}.bn{number}", NORM)
    if block.row.has_squeeze:
        names |= torch(f"{block.path}/squeeze_excite/squeeze", f"{prefix}.se.conv_reduce")
        names |= torch(f"{block.path}/squeeze_excite/expand", f"{prefix}.se.conv_expand")
    return names


class _Bottleneck(NamedTuple):
    """A bottleneck of MobileNet v3."""

    path: str
    row: Row
    convs: tuple[str, ...]


def _list_bottlenecks(model_name: str) -> Iterator[_Bottleneck]:
    for number, row in enumerate(VARIANTS[model_name].rows):
        yield _Bottleneck(name_bottleneck(number), row, _list_convs(number))


def _list_convs(number: int) -> tuple[str, ...]:
    # The first bottleneck is as wide as its input, so that it has nothing to expand.
    return ("expand", "depthwise", "project") if number else ("depthwise", "project")


def _kernel_leaf(path: str) -> str:
    return "depthwise" if path.endswith("depthwise") else "w"

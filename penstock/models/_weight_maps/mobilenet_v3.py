"""What the parameters of MobileNet v3 are called elsewhere.

torchvision's and timm's own do not coincide: they pad evenly where they stride. timm's `tf_` ones,
which carry TF-Slim's weights, do. In Keras and timm the gates of squeeze-and-excite have a slope of
1/6, in TF-Slim and here of 0.16667: with the same weights logits differ by 2e-4.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from penstock.models._weight_maps._common import (
    keras_layer,
    keras_norm,
    slim_name,
    torch_layer,
    torch_norm,
)
from penstock.models.mobilenet_v3 import VARIANTS, Row
from penstock.preprocessing import Preprocessing, Torchvision

_SQUEEZE_EXCITE = {"squeeze": "Conv", "expand": "Conv_1"}


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    for ours, theirs in _SQUEEZE_EXCITE.items():
        path = path.replace(f"/squeeze_excite/{ours}/", f"/squeeze_excite/{theirs}/conv/")
    return slim_name("MobilenetV3", path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' MobileNetV3Large and Small."""
    return _keras(model_name, "conv", "logits", "_", "_bn")


def keras_2(model_name: str) -> dict[str, str]:
    """Return what `keras` does, as Keras named the layers when it published the weights."""
    return _keras(model_name, "Conv", "Logits", "/", "/BatchNorm")


def _keras(model_name: str, conv: str, last: str, below: str, norm: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for ours, theirs in (("Conv", conv), ("Conv_1", f"{conv}_1")):
        names |= {f"{ours}/conv/w": f"{theirs}/kernel"}
        names |= keras_norm(f"{ours}/norm", f"{theirs}{norm}")
    for block in _blocks(model_name):
        for kind in block.kinds:
            theirs = f"{block.name}{below}{kind}"
            leaf = "depthwise" if kind == "depthwise" else "w"
            names[f"{block.name}/{kind}/conv/{leaf}"] = f"{theirs}/kernel"
            names |= keras_norm(f"{block.name}/{kind}/norm", f"{theirs}{norm}")
        if block.row.has_squeeze:
            theirs = f"{block.name}{below}squeeze_excite{below}{conv}"
            names |= keras_layer(f"{block.name}/squeeze_excite/squeeze", theirs)
            names |= keras_layer(f"{block.name}/squeeze_excite/expand", f"{theirs}_1")
    names |= keras_layer("Conv_2/conv", f"{conv}_2")
    return names | keras_layer("Logits/Conv2d_1c_1x1/fc", last)


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in timm's `tf_mobilenetv3_large_100`, `_small_100`, `_minimal_100`."""
    names = {"Conv/conv/w": "conv_stem.weight"} | torch_norm("Conv/norm", "bn1")
    blocks = list(_blocks(model_name))
    stages = itertools.groupby(blocks, key=lambda block: block.row.depth)
    for stage, (_, members) in enumerate(stages):
        for number, block in enumerate(members):
            names |= _timm_block(block, f"blocks.{stage}.{number}")
    last = f"blocks.{len({block.row.depth for block in blocks})}.0"
    names |= {"Conv_1/conv/w": f"{last}.conv.weight"} | torch_norm("Conv_1/norm", f"{last}.bn1")
    names |= torch_layer("Conv_2/conv", "conv_head")
    return names | torch_layer("Logits/Conv2d_1c_1x1/fc", "classifier")


def torch_preprocessing(model_name: str) -> Preprocessing:
    """Return the preprocessing of timm's weights, which are TF-Slim's."""
    return Torchvision(
        means=(0.5, 0.5, 0.5),
        deviations=(0.5, 0.5, 0.5),
    )


def _timm_block(block: _Block, prefix: str) -> dict[str, str]:
    names: dict[str, str] = {}
    kernels = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
    if "expand" not in block.kinds:
        kernels["project"] = "conv_pw"
    for number, kind in enumerate(block.kinds, 1):
        leaf = "depthwise" if kind == "depthwise" else "w"
        names[f"{block.name}/{kind}/conv/{leaf}"] = f"{prefix}.{kernels[kind]}.weight"
        names |= torch_norm(f"{block.name}/{kind}/norm", f"{prefix}.bn{number}")
    if block.row.has_squeeze:
        names |= torch_layer(f"{block.name}/squeeze_excite/squeeze", f"{prefix}.se.conv_reduce")
        names |= torch_layer(f"{block.name}/squeeze_excite/expand", f"{prefix}.se.conv_expand")
    return names


class _Block(NamedTuple):
    """A bottleneck: its name here, its row, and its convolutions."""

    name: str
    row: Row
    kinds: tuple[str, ...]


def _blocks(model_name: str) -> Iterator[_Block]:
    for number, row in enumerate(VARIANTS[model_name].rows):
        kinds = ("expand", "depthwise", "project") if number else ("depthwise", "project")
        yield _Block(f"expanded_conv_{number}" if number else "expanded_conv", row, kinds)

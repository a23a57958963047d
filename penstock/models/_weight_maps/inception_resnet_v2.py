"""What the parameters of Inception-ResNet v2 are called elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.models._inception import STEM, Branches, conv_names
from penstock.models._weight_maps._common import keras_conv, slim_name, torch_conv
from penstock.models._weight_maps._inception import timm_layers
from penstock.models.inception_resnet_v2 import BLOCK_8, LAST_CONV, STAGES, WIDENING
from penstock.preprocessing import Preprocessing, Torchvision

_LAST = "Logits/Logits/fc"


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name("InceptionResnetV2", path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' InceptionResNetV2.

    It has no auxiliary head. Its layers without a name are numbered in the order they are made, as
    a first model of a process is.
    """
    paths = [conv.name for convs in STEM for conv in convs]
    for module in _modules():
        paths += conv_names(module.branches, module.path)
    names: dict[str, str] = {}
    for number, path in enumerate(paths):
        suffix = f"_{number}" if number else ""
        names |= keras_conv(path, f"conv2d{suffix}", f"batch_normalization{suffix}")
    for path, layer in ((module.path, module.keras) for module in _modules() if module.keras):
        names[f"{path}/{WIDENING}/conv/w"] = f"{layer}_conv/kernel"
        names[f"{path}/{WIDENING}/conv/b"] = f"{layer}_conv/bias"
    names |= keras_conv(LAST_CONV, "conv_7b", "conv_7b_bn")
    return names | {f"{_LAST}/w": "predictions/kernel", f"{_LAST}/b": "predictions/bias"}


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dicts of timm's `inception_resnet_v2` models.

    It has no auxiliary head. Its batch norms have scales, `torch_ones` of them: where they are all
    1, as where weights come from TF-Slim, they can be left out; else it is another network.
    """
    names: dict[str, str] = {}
    for path, layer in _timm_layers():
        names |= torch_conv(path, f"{layer}.conv", f"{layer}.bn")
    for module in (module for module in _modules() if module.keras):
        names[f"{module.path}/{WIDENING}/conv/w"] = f"{module.timm}.conv2d.weight"
        names[f"{module.path}/{WIDENING}/conv/b"] = f"{module.timm}.conv2d.bias"
    return names | {f"{_LAST}/w": "classif.weight", f"{_LAST}/b": "classif.bias"}


def torch_preprocessing(model_name: str) -> Preprocessing:
    """Return the preprocessing of timm's weights, which are TF-Slim's."""
    return Torchvision(
        means=(0.5, 0.5, 0.5),
        deviations=(0.5, 0.5, 0.5),
        crop_fraction=0.8975,
        interpolation="bicubic",
    )


def torch_ones(model_name: str) -> tuple[str, ...]:
    """Return the names in the state dict whose arrays have to be 1 everywhere."""
    return tuple(f"{layer}.bn.weight" for _, layer in _timm_layers())


class _Module(NamedTuple):
    """A module or residual block: its path, and its names; keras names the latter alone."""

    path: str
    branches: Branches
    timm: str
    keras: str = ""


def _modules() -> Iterator[_Module]:
    """Yield modules and residual blocks in the order they are made."""
    for stage in STAGES:
        yield _Module(stage.name, stage.module, stage.name.lower())
        outer, inner = stage.path
        for number in range(1, stage.num_blocks + 1):
            block = f"{inner}_{number}"
            timm = f"{outer.lower()}.{number - 1}"
            yield _Module(f"{outer}/{block}", stage.block, timm, block)
    yield _Module("Block8", BLOCK_8, "block8", "block8_10")


def _timm_layers() -> Iterator[tuple[str, str]]:
    """Yield the path of each convolution with batch norm, and timm's name of it."""
    yield from ((conv.name, f"conv2d_{conv.place}") for convs in STEM for conv in convs)
    for module in _modules():
        yield from timm_layers(module.branches, module.path, module.timm)
    yield LAST_CONV, "conv2d_7b"

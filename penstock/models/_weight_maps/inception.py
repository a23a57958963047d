"""What the parameters of Inception are called in Keras and timm, which have no auxiliary heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.models import inception_resnet_v2, inception_v2, inception_v3, inception_v4
from penstock.models._inception import STEM, Branches, Fork, Pool, name_convs
from penstock.models._weight_maps._layer_names import (
    SHIFT,
    keras,
    keras_conv,
    slim_name,
    torch,
    torch_conv,
)
from penstock.models.inception_resnet_v2 import LAST_CONV, WIDENING

_STEM_PATHS = [conv.name for convs in STEM for conv in convs]
_LAST = "Logits/Logits/fc"


def slim_name_v2(model_name: str, path: str) -> str:
    # The stem is a separable convolution; its second kernel has another name than a convolution's.
    if path == f"{inception_v2.STEM}/conv/w":
        return f"InceptionV2/{inception_v2.STEM}/pointwise_weights"
    return slim_name("InceptionV2", path)


def keras_v3(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' InceptionV3."""
    modules = [path for name, module in inception_v3.MODULES for path in name_convs(module, name)]
    names = _number_keras_convs([*_STEM_PATHS, *modules])
    return names | keras("Logits/Conv2d_1c_1x1/fc", "predictions")


def keras_resnet_v2(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' InceptionResNetV2."""
    modules = [path for module in _modules() for path in name_convs(module.branches, module.path)]
    names = _number_keras_convs([*_STEM_PATHS, *modules])
    for module in _modules():
        if module.keras:
            names |= keras(f"{module.path}/{WIDENING}/conv", f"{module.keras}_conv")
    names |= keras_conv(LAST_CONV, "conv_7b", "conv_7b_bn", SHIFT)
    return names | keras(_LAST, "predictions")


def _number_keras_convs(paths: list[str]) -> dict[str, str]:
    """Return Keras's names of convolutions without a name, which it numbers as they are made."""
    names: dict[str, str] = {}
    for number, path in enumerate(paths):
        # Keras gives the first of a kind no number.
        suffix = f"_{number}" if number else ""
        names |= keras_conv(path, f"conv2d{suffix}", f"batch_normalization{suffix}", SHIFT)
    return names


def torch_resnet_v2(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dicts of timm's `inception_resnet_v2` models."""
    names = _name_timm_convs(_timm_layers_resnet_v2())
    for module in _modules():
        if module.keras:
            names |= torch(f"{module.path}/{WIDENING}/conv", f"{module.timm}.conv2d")
    return names | torch(_LAST, "classif")


def torch_v4(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dict of timm's `inception_v4.tf_in1k`."""
    return _name_timm_convs(_timm_layers_v4()) | torch(_LAST, "last_linear")


def torch_ones(model_name: str) -> tuple[str, ...]:
    """Return timm's scales of batch norms; ours have none.

    In weights that come from TF-Slim they are all 1 and can be left out; a file with others is of
    another network.
    """
    is_v4 = model_name == "inception_v4"
    layers = _timm_layers_v4() if is_v4 else _timm_layers_resnet_v2()
    return tuple(f"{layer}.bn.weight" for _, layer in layers)


def _name_timm_convs(layers: Iterator[tuple[str, str]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for path, layer in layers:
        names |= torch_conv(path, f"{layer}.conv", f"{layer}.bn", SHIFT)
    return names


def _timm_layers_v4() -> Iterator[tuple[str, str]]:
    stem = inception_v4.STEM
    for index, conv in enumerate(stem):
        yield conv.name, f"features.{index}"
    for index, (name, branches) in enumerate(inception_v4.MODULES, start=len(stem)):
        for path, layer in _timm_layers(branches, name, f"features.{index}"):
            # A module of one pooling and one convolution has no branches in timm.
            is_beside_pool = name in ("Mixed_3a", "Mixed_5a")
            yield path, f"features.{index}.conv" if is_beside_pool else layer


def _timm_layers_resnet_v2() -> Iterator[tuple[str, str]]:
    yield from ((conv.name, f"conv2d_{conv.place}") for convs in STEM for conv in convs)
    for module in _modules():
        yield from _timm_layers(module.branches, module.path, module.timm)
    yield LAST_CONV, "conv2d_7b"


def _timm_layers(branches: Branches, path: str, module: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each convolution of a module, and timm's name of it."""
    for number, steps in enumerate(branches):
        branch = f"{module}.branch{number}"
        # A branch of one layer is that layer. A longer one numbers its layers, poolings too. One
        # that forks is no sequence: its layers are attributes, `branch1_0` and `branch1_1a`.
        separator = "_" if any(isinstance(step, Fork) for step in steps) else "."
        for index, step in enumerate(steps):
            layer = branch if len(steps) == 1 else f"{branch}{separator}{index}"
            here = f"{path}/Branch_{number}"
            if isinstance(step, Fork):
                lettered = zip(step.convs, "ab", strict=True)
                yield from ((f"{here}/{conv.name}", layer + letter) for conv, letter in lettered)
            elif not isinstance(step, Pool):
                yield f"{here}/{step.name}", layer


class _Module(NamedTuple):
    """A module or residual block of Inception-ResNet v2, with its names elsewhere.

    Keras has no name for modules.
    """

    path: str
    branches: Branches
    timm: str
    keras: str = ""


def _modules() -> Iterator[_Module]:
    for stage in inception_resnet_v2.STAGES:
        yield _Module(stage.name, stage.module, stage.name.lower())
        outer, inner = stage.path
        for number in range(1, stage.num_blocks + 1):
            block = f"{inner}_{number}"
            timm = f"{outer.lower()}.{number - 1}"
            yield _Module(f"{outer}/{block}", stage.block, timm, block)
    yield _Module("Block8", inception_resnet_v2.BLOCK_8, "block8", "block8_10")

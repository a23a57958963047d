"""What the parameters of VGG are called in Keras, torchvision and timm; not Fluid's vgg_bn_drop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from penstock.models._weight_maps._layer_names import (
    keras_layer,
    torch_layer,
    torch_norm,
)
from penstock.models.vgg import VGG_16, VGG_19, VGG_A

_DEPTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"vgg_a": VGG_A, "vgg_16": VGG_16, "vgg_19": VGG_19, "vgg_16_bn": VGG_16}
)
_DENSE = ("fc6/conv", "fc7/conv", "fc8/fc")


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' VGG16 (`vgg_16`) and VGG19."""
    names: dict[str, str] = {}
    for path, stage, layer in _convolutions(model_name):
        names |= keras_layer(f"{path}/conv", f"block{stage}_conv{layer}")
    for path, layer in zip(_DENSE, ("fc1", "fc2", "predictions"), strict=True):
        names |= keras_layer(path, layer)
    return names


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dicts of torchvision's vgg11, vgg16, vgg19 and vgg16_bn.

    They coincide at the network's own image size alone: its last pooling gives the 7x7 pixels that
    torchvision averages to at every size.
    """
    classifier = ("classifier.0", "classifier.3", "classifier.6")
    return _torch(model_name, dict(zip(_DENSE, classifier, strict=True)))


def timm(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dicts of timm's networks of torchvision's names.

    Their weights `tv_in1k` are torchvision's.
    """
    head = ("pre_logits.fc1", "pre_logits.fc2", "head.fc")
    return _torch(model_name, dict(zip(_DENSE, head, strict=True)))


def _torch(model_name: str, dense: Mapping[str, str]) -> dict[str, str]:
    has_norm = model_name == "vgg_16_bn"
    names: dict[str, str] = {}
    # The index in torch's sequence of convolutions, ReLUs, norms and poolings.
    index, last_stage = 0, 1
    for path, stage, _ in _convolutions(model_name):
        # One pooling between two stages.
        index += stage - last_stage
        names |= torch_layer(f"{path}/conv", f"features.{index}")
        if has_norm:
            names |= torch_norm(f"{path}/norm", f"features.{index + 1}")
        index, last_stage = index + (3 if has_norm else 2), stage
    for path, layer in dense.items():
        names |= torch_layer(path, layer)
    return names


def _convolutions(model_name: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path of each convolution, its stage and its number there, both from 1."""
    for stage, depth in enumerate(_DEPTHS[model_name], 1):
        for layer in range(1, depth + 1):
            yield f"conv{stage}/conv{stage}_{layer}", stage, layer

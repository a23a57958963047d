"""What the parameters of VGG are called in Keras, torchvision and timm; not Fluid's vgg_bn_drop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.models._weight_maps import _layer_names
from penstock.models._weight_maps._layer_names import NORM
from penstock.models.vgg import VGG_16, VGG_19, VGG_A

_DEPTHS = {"vgg_a": VGG_A, "vgg_16": VGG_16, "vgg_19": VGG_19, "vgg_16_bn": VGG_16}
_DENSE = ("fc6/conv", "fc7/conv", "fc8/fc")


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' VGG16 (`vgg_16`) and VGG19."""
    names: dict[str, str] = {}
    for path, stage, layer in _convolutions(model_name):
        names |= _layer_names.keras(f"{path}/conv", f"block{stage}_conv{layer}")
    for path, layer in zip(_DENSE, ("fc1", "fc2", "predictions"), strict=True):
        names |= _layer_names.keras(path, layer)
    return names


def torch(
    model_name: str, dense: Sequence[str] = ("classifier.0", "classifier.3", "classifier.6")
) -> dict[str, str]:
    """Return path -> name in the state dicts of torchvision's vgg11, vgg16, vgg19 and vgg16_bn.

    They coincide at the network's own image size alone: its last pooling gives the 7x7 pixels that
    torchvision averages to at every size. timm has other names of the dense layers.
    """
    has_norm = model_name == "vgg_16_bn"
    names: dict[str, str] = {}
    # The index in torch's sequence of convolutions, ReLUs, norms and poolings.
    index, last_stage = 0, 1
    for path, stage, _ in _convolutions(model_name):
        # One pooling between two stages.
        index += stage - last_stage
        names |= _layer_names.torch(f"{path}/conv", f"features.{index}")
        if has_norm:
            names |= _layer_names.torch(f"{path}/norm", f"features.{index + 1}", NORM)
        index, last_stage = index + (3 if has_norm else 2), stage
    for path, layer in zip(_DENSE, dense, strict=True):
        names |= _layer_names.torch(path, layer)
    return names


def _convolutions(model_name: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path of each convolution, its stage and its number there, both from 1."""
    for stage, depth in enumerate(_DEPTHS[model_name], 1):
        for layer in range(1, depth + 1):
            yield f"conv{stage}/conv{stage}_{layer}", stage, layer

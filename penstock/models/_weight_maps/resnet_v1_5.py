"""What the parameters of ResNet-50 v1.5 and ResNeXt-50 are called elsewhere."""

from __future__ import annotations

from penstock.models._residual import NUM_UNITS
from penstock.models._weight_maps._common import torch_layer, torch_norm


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dicts of torchvision's resnet50 and resnext50_32x4d.

    timm's networks of these names have the same, with all its weights.
    """
    names = _convolution("conv1", "conv1", "bn1")
    for block, count in enumerate(NUM_UNITS[50], 1):
        for unit in range(count):
            path, layer = f"block{block}/unit_{unit + 1}", f"layer{block}.{unit}"
            for number in (1, 2, 3):
                conv, norm = f"{layer}.conv{number}", f"{layer}.bn{number}"
                names |= _convolution(f"{path}/conv{number}", conv, norm)
            if unit == 0:
                shortcut = f"{layer}.downsample"
                names |= _convolution(f"{path}/shortcut", f"{shortcut}.0", f"{shortcut}.1")
    return names | torch_layer("logits/fc", "fc")


def _convolution(path: str, conv: str, norm: str) -> dict[str, str]:
    return {f"{path}/conv/w": f"{conv}.weight", **torch_norm(f"{path}/norm", norm)}

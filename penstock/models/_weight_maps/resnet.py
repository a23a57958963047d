"""What the parameters of ResNet v1.5, ResNeXt and ResNet v2 are called in torchvision and Keras."""

from __future__ import annotations

from penstock.models._weight_maps._layer_names import NORM, keras, keras_conv, torch, torch_conv
from penstock.models.resnet import NUM_UNITS


def torch_v1_5(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dicts of torchvision's resnet50 and resnext50_32x4d.

    timm's networks of these names have the same, with all its weights.
    """
    names = torch_conv("conv1", "conv1", "bn1")
    for block, count in enumerate(NUM_UNITS[50], 1):
        for unit in range(count):
            path, layer = f"block{block}/unit_{unit + 1}", f"layer{block}.{unit}"
            convs = {f"conv{n}": (f"conv{n}", f"bn{n}") for n in (1, 2, 3)}
            if unit == 0:
                convs["shortcut"] = ("downsample.0", "downsample.1")
            for ours, (conv, norm) in convs.items():
                names |= torch_conv(f"{path}/{ours}", f"{layer}.{conv}", f"{layer}.{norm}")
    return names | torch("logits/fc", "fc")


# TF-Slim's resnet_v2_* have the same parameters as Keras's, and another first pooling. So Keras's
# networks are registered as `keras_resnet_v2_*`, and its files belong to them.
def keras_v2(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' ResNet50V2, 101V2 and 152V2."""
    num_units = {f"keras_resnet_v2_{n}": NUM_UNITS[n] for n in (50, 101, 152)}[model_name]
    names = keras("conv1/conv", "conv1_conv")
    for block, count in enumerate(num_units, 1):
        for unit in range(1, count + 1):
            path = f"block{block}/unit_{unit}/bottleneck_v2"
            layer = f"conv{block + 1}_block{unit}"
            names |= keras(f"{path}/preact", f"{layer}_preact_bn", NORM)
            if unit == 1:
                names |= keras(f"{path}/shortcut/conv", f"{layer}_0_conv")
            for number in (1, 2):
                own = f"{layer}_{number}"
                names |= keras_conv(f"{path}/conv{number}", f"{own}_conv", f"{own}_bn")
            names |= keras(f"{path}/conv3/conv", f"{layer}_3_conv")
    return names | keras("postnorm", "post_bn", NORM) | keras("logits/fc", "predictions")

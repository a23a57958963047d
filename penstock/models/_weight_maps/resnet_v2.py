"""What the parameters of ResNet v2 are called elsewhere."""

from __future__ import annotations

from penstock.models._residual import NUM_UNITS
from penstock.models._weight_maps._common import keras_layer, keras_norm, slim_name


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path` of `resnet_v2_*`."""
    return slim_name(model_name, path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' ResNet50V2, 101V2 and 152V2.

    They are `keras_resnet_v2_*`. TF-Slim's `resnet_v2_*` have the same parameters, and another
    first pooling.
    """
    names = keras_layer("conv1/conv", "conv1_conv")
    for block, count in enumerate(NUM_UNITS[int(model_name.rsplit("_", 1)[1])], 1):
        for unit in range(1, count + 1):
            path = f"block{block}/unit_{unit}/bottleneck_v2"
            layer = f"conv{block + 1}_block{unit}"
            names |= keras_norm(f"{path}/preact", f"{layer}_preact_bn")
            if unit == 1:
                names |= keras_layer(f"{path}/shortcut/conv", f"{layer}_0_conv")
            for number in (1, 2):
                names[f"{path}/conv{number}/conv/w"] = f"{layer}_{number}_conv/kernel"
                names |= keras_norm(f"{path}/conv{number}/norm", f"{layer}_{number}_bn")
            names |= keras_layer(f"{path}/conv3/conv", f"{layer}_3_conv")
    return names | keras_norm("postnorm", "post_bn") | keras_layer("logits/fc", "predictions")

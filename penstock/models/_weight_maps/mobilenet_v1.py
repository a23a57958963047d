"""What the parameters of MobileNet v1 are called elsewhere.

torchvision has none, and timm's `mobilenetv1_100` does not coincide: it pads evenly where it
strides.
"""

from __future__ import annotations

from penstock.models._weight_maps._common import keras_layer, keras_norm, slim_name
from penstock.models.mobilenet_v1 import LAYERS


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name("MobilenetV1", path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' MobileNet, by its `alpha`."""
    names = {"Conv2d_0/conv/w": "conv1/kernel"} | keras_norm("Conv2d_0/norm", "conv1_bn")
    for number in range(1, len(LAYERS)):
        for kind, leaf, layer in (
            ("depthwise", "depthwise", f"conv_dw_{number}"),
            ("pointwise", "w", f"conv_pw_{number}"),
        ):
            path = f"Conv2d_{number}_{kind}"
            names[f"{path}/conv/{leaf}"] = f"{layer}/kernel"
            names |= keras_norm(f"{path}/norm", f"{layer}_bn")
    return names | keras_layer("Logits/Conv2d_1c_1x1/fc", "conv_preds")

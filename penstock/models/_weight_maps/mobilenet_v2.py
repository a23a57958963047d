"""What the parameters of MobileNet v2 are called elsewhere.

torchvision's and timm's do not coincide: they pad evenly where they stride, and their batch norm
has another epsilon.
"""

from __future__ import annotations

from penstock.models._weight_maps._common import keras_layer, keras_norm, slim_name
from penstock.models.mobilenet_v2 import BOTTLENECKS


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name("MobilenetV2", path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' MobileNetV2, by its `alpha`."""
    return _keras(last="predictions")


def keras_2(model_name: str) -> dict[str, str]:
    """Return what `keras` does, as Keras named the layers when it published the weights."""
    return _keras(last="Logits")


def _keras(last: str) -> dict[str, str]:
    names = {"Conv/conv/w": "Conv1/kernel"} | keras_norm("Conv/norm", "bn_Conv1")
    for number in range(sum(count for *_, count, _ in BOTTLENECKS)):
        ours = f"expanded_conv_{number}" if number else "expanded_conv"
        theirs = f"block_{number}" if number else "expanded_conv"
        for kind in ("expand", "depthwise", "project"):
            if kind == "expand" and not number:
                continue
            leaf = "depthwise" if kind == "depthwise" else "w"
            names[f"{ours}/{kind}/conv/{leaf}"] = f"{theirs}_{kind}/kernel"
            names |= keras_norm(f"{ours}/{kind}/norm", f"{theirs}_{kind}_BN")
    names |= {"Conv_1/conv/w": "Conv_1/kernel"} | keras_norm("Conv_1/norm", "Conv_1_bn")
    return names | keras_layer("Logits/Conv2d_1c_1x1/fc", last)

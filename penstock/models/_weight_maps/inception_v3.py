"""What the parameters of Inception v3 are called elsewhere.

torchvision's and timm's do not coincide: their average pooling counts the padding.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models._inception import STEM, conv_names
from penstock.models._weight_maps._common import keras_conv, slim_name
from penstock.models.inception_v3 import MODULES


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name("InceptionV3", path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' InceptionV3.

    It has no auxiliary head. Its layers are numbered in the order they are made, as a first model
    of a process is.
    """
    names: dict[str, str] = {}
    for number, path in enumerate(_conv_paths()):
        suffix = f"_{number}" if number else ""
        names |= keras_conv(path, f"conv2d{suffix}", f"batch_normalization{suffix}")
    last = "Logits/Conv2d_1c_1x1/fc"
    return names | {f"{last}/w": "predictions/kernel", f"{last}/b": "predictions/bias"}


def _conv_paths() -> Iterator[str]:
    yield from (conv.name for convs in STEM for conv in convs)
    for name, branches in MODULES:
        yield from conv_names(branches, name)

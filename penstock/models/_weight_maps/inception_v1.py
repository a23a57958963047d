"""What the parameters of Inception v1 are called elsewhere.

torchvision's GoogLeNet does not coincide: it pads its first convolution on both sides alike.
"""

from __future__ import annotations

from penstock.models._weight_maps._common import slim_name


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name("InceptionV1", path)

"""What the parameters of AlexNet are called elsewhere.

torchvision's does not coincide: it pads its first convolution, and pools to 6x6.
"""

from __future__ import annotations

from penstock.models._weight_maps._common import slim_name


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter at `path` of `alexnet_v2`."""
    return slim_name(model_name, path)

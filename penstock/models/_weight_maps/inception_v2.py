"""What the parameters of Inception v2 are called elsewhere."""

from __future__ import annotations

from penstock.models._weight_maps._common import slim_name
from penstock.models.inception_v2 import STEM


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    if path == f"{STEM}/conv/w":
        return f"InceptionV2/{STEM}/pointwise_weights"
    return slim_name("InceptionV2", path)

"""What the parameters of CifarNet are called elsewhere."""

from __future__ import annotations

from penstock.models._weight_maps._common import slim_name


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter at `path`."""
    return slim_name("CifarNet", path)

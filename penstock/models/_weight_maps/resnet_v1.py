"""What the parameters of ResNet v1 are called elsewhere.

keras.applications' ResNet50 does not coincide: it strides in a block's first 1x1, with biases.
"""

from __future__ import annotations

from penstock.models._weight_maps._common import slim_name


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name(model_name, path)

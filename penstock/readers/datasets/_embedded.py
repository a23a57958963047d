"""Data sets that need no download: scikit-learn's real ones, and FastNN's mock."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from penstock.readers.datasets.registry import DatasetRequest, register_dataset
from penstock.readers.datasets.splits import fixed_split, standardise

Arrays = dict[str, np.ndarray]


@register_dataset("digits")
def load_digits(request: DatasetRequest) -> Arrays:
    """Load 1797 handwritten digits: image [8, 8, 1] float32 in 0..1, label in 0..9."""
    table = _read_digits()
    rows = fixed_split(len(table), request.split)
    images = table[rows, :-1].reshape(-1, 8, 8, 1) / 16
    return {"image": images.astype(np.float32), "label": table[rows, -1].astype(np.int32)}


@functools.cache
def _read_digits() -> np.ndarray:
    """Return `[1797, 65]`: 64 pixels in 0..16 and the label."""
    # Importing scikit-learn takes 0.5 s, reading its file 0.15.
    package: Any = importlib.util.find_spec("sklearn")
    places = package.submodule_search_locations if package is not None else []
    for path in (Path(place, "datasets", "data", "digits.csv.gz") for place in places):
        if path.exists():
            return np.loadtxt(path, delimiter=",")
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    return np.column_stack([bunch.data, bunch.target])


@register_dataset("diabetes")
def load_diabetes(request: DatasetRequest) -> Arrays:
    """Load 442 patients: x [10] standardised, y [1] the disease's progress, 25 to 346."""
    from sklearn import datasets

    bunch: Any = datasets.load_diabetes(scaled=False)
    return build_table(bunch.data, bunch.target, request.split)


@register_dataset("wine")
@register_dataset("breast_cancer")
def load_classes(request: DatasetRequest) -> Arrays:
    """Load 178 wines, x [13], label 0..2, or 569 tumours, x [30], label 1 benign: standardised."""
    from sklearn import datasets

    bunch: Any = getattr(datasets, f"load_{request.name}")()
    return build_table(bunch.data, bunch.target, request.split, is_class=True)


@register_dataset("mock")
def load_mock(request: DatasetRequest) -> Arrays:
    """Make FastNN's mock: 80 batches of images of ones, label 1.

    image_shape is [224, 224, 3] without another.
    """
    num_samples = 80 * (request.batch_size or 1)
    shape = tuple(size or 224 for size in request.image_shape or (224, 224, 3))
    # Broadcast: 80 batches of 64 images would be 3 GB, and one pixel is stored.
    return {
        "image": np.broadcast_to(np.float32(1), (num_samples, *shape)),
        "label": np.broadcast_to(np.int32(1), (num_samples,)),
    }


def build_table(
    features: np.ndarray, target: np.ndarray, split: str, *, is_class: bool = False
) -> Arrays:
    """Return the split with x standardised, and label `[n]` int32 or y `[n, 1]` float32."""
    rows, train_rows = (fixed_split(len(target), part) for part in (split, "train"))
    x = standardise(features, train_rows, rows)
    if is_class:
        return {"x": x, "label": target[rows].astype(np.int32)}
    return {"x": x, "y": target[rows, np.newaxis].astype(np.float32)}

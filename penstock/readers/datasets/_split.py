"""The fixed split of sets that come whole, and standardising by the training part."""

import numpy as np


def fixed_split(num_samples: int, split: str, test_share: int = 5) -> np.ndarray:
    """Return the rows `[n]` of a split: a `test_share`-th of a fixed permutation is the test part.

    >>> len(fixed_split(10, "train")), len(fixed_split(10, "test"))
    (8, 2)
    """
    order = np.random.default_rng(0).permutation(num_samples)
    num_train = num_samples - num_samples // test_share
    return order[:num_train] if split == "train" else order[num_train:]


def standardised(features: np.ndarray, train_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return `features[rows]` with the training rows' mean 0 and deviation 1, float32.

    >>> standardised(np.array([[1.0], [3.0], [5.0]]), np.array([0, 1]), np.array([2])).tolist()
    [[3.0]]
    """
    train = features[train_rows]
    deviation = train.std(axis=0)
    scaled = (features[rows] - train.mean(axis=0)) / np.where(deviation == 0, 1, deviation)
    return scaled.astype(np.float32)

"""The fixed split of sets that come whole, and standardising by the training part."""

from __future__ import annotations

import numpy as np


def fixed_split(num_samples: int, split: str, test_share: int = 5) -> np.ndarray:
    """Return the rows `[n]` of a split: a `test_share`-th of a fixed order is the test part."""
    order = np.random.default_rng(0).permutation(num_samples)
    num_train = num_samples - num_samples // test_share
    return order[:num_train] if split == "train" else order[num_train:]


def choose_parts(
    labels: np.ndarray, groups: np.ndarray, *, num_parts: int, seed: int
) -> np.ndarray:
    """Return the part of each sample, `[n]`: 0, and of a tenth each 1, 2 and so on.

    Each part has of each class its share, and a group's samples are in one part.

    Arguments:
      groups: numbers from 0, `[n]`; as many as samples where they have none.
    """
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))[::-1]
    order = spread_classes(labels[first], order)
    wanted = len(labels) // 10
    # A group of half of the images is to train on, unless most are as large.
    largest = max(wanted, np.median(sizes))
    of_group, part, num_taken = np.zeros(len(sizes), int), 1, 0
    for group in order if wanted else ():
        if part == num_parts:
            break
        if sizes[group] <= largest:
            of_group[group] = part
            num_taken += sizes[group]
            if num_taken >= wanted:
                part, num_taken = part + 1, 0
    return of_group[groups]


def spread_classes(labels: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return an order of samples whose beginning, however long, has of each class its share.

    Arguments:
      labels: `[n]`.
      order: the samples of a class keep this order, `[n]` rows.

    >>> spread_classes(np.array([0, 0, 0, 0, 1, 1]), np.arange(6)).tolist()
    [0, 4, 1, 2, 5, 3]
    """
    places = np.empty(len(order))
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels[order] == label)
        places[of_class] = (np.arange(len(of_class)) + 0.5) / len(of_class)
    return order[np.argsort(places, kind="stable")]


def standardise(features: np.ndarray, train_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return `features[rows]` with the training rows' mean 0 and deviation 1, float32."""
    train = features[train_rows]
    # A feature that never changes is left at 0; by rounding its deviation may be 1e-17.
    deviation = np.where((train == train[0]).all(axis=0), 1, train.std(axis=0))
    scaled = (features[rows] - train.mean(axis=0)) / deviation
    return scaled.astype(np.float32)

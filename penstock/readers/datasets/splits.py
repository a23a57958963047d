"""The fixed split of sets that come whole, and standardising by the training part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.readers.images import ImageFolder, ImageSample


def fixed_split(num_samples: int, split: str, test_share: int = 5) -> np.ndarray:
    """Return the rows `[n]` of a split: a `test_share`-th of a fixed permutation is the test part.

    >>> len(fixed_split(10, "train")), len(fixed_split(10, "test"))
    (8, 2)
    """
    order = np.random.default_rng(0).permutation(num_samples)
    num_train = num_samples - num_samples // test_share
    return order[:num_train] if split == "train" else order[num_train:]


def choose_held_out(labels: np.ndarray, *, share: int) -> np.ndarray:
    """Return a mask `[n]` of a `share`-th of the samples, that of each class in proportion.

    >>> choose_held_out(np.array([0] * 30 + [1] * 30), share=10).reshape(2, 30).sum(axis=1).tolist()
    [3, 3]
    """
    order = np.random.default_rng(0).permutation(len(labels))[::-1]
    is_held_out = np.zeros(len(labels), bool)
    is_held_out[spread_classes(labels, order)[: len(labels) // share]] = True
    return is_held_out


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
    """Return `features[rows]` with the training rows' mean 0 and deviation 1, float32.

    >>> standardise(np.array([[1.0], [3.0], [5.0]]), np.array([0, 1]), np.array([2])).tolist()
    [[3.0]]
    """
    train = features[train_rows]
    deviation = train.std(axis=0)
    # A feature that never changes is left at 0.
    scaled = (features[rows] - train.mean(axis=0)) / np.where(deviation == 0, 1, deviation)
    return scaled.astype(np.float32)


class Subset:
    """Some rows of an `ImageFolder`."""

    def __init__(self, source: ImageFolder, rows: np.ndarray) -> None:
        self.source = source
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ImageSample:
        """Return the sample of a row."""
        return self.source[int(self.rows[index])]

    def encoded(self, index: int) -> bytes | np.ndarray:
        """Return the bytes of a row's image, or the small image."""
        return self.source.encoded(int(self.rows[index]))

    def decoded(self, index: int, encoded: bytes | np.ndarray) -> ImageSample:
        """Return the sample of what `encoded` gave."""
        return self.source.decoded(int(self.rows[index]), encoded)

    def origin(self, index: int) -> str:
        """Return where the source says the sample comes from."""
        return self.source.origin(int(self.rows[index]))

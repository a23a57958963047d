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

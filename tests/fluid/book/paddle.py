"""What the book's programs call `paddle`: its readers, and data sets made up in their shapes."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock import readers

batch = readers.batch
reader = readers

NUM_WORDS = 40


def uci_housing(num_samples: int) -> Callable[[], Iterator[Any]]:
    """Return a reader of 13 features and a price that is their weighted sum, about 22."""
    generator = np.random.default_rng(num_samples)
    features = generator.normal(size=(num_samples, 13)).astype("float32")
    prices = 22 + features @ np.linspace(-3, 3, 13).astype("float32")

    def read() -> Iterator[Any]:
        yield from zip(features, prices[:, np.newaxis], strict=True)

    return read


def images(num_samples: int, size: int, low: float) -> Callable[[], Iterator[Any]]:
    """Return a reader of flat images in `low` to 1, bright at a tenth that is their label."""

    def read() -> Iterator[Any]:
        generator = np.random.default_rng(num_samples)
        for label in generator.integers(0, 10, num_samples):
            image = generator.uniform(low, (low + 1) / 2, size).astype("float32")
            image[label * (size // 10) : (label + 1) * (size // 10)] = 1.0
            yield image, int(label)

    return read


def build_dict() -> dict[str, int]:
    """Return the words' ids."""
    return {f"word{number}": number for number in range(NUM_WORDS)}


def ngrams(word_idx: dict[str, int], n: int, num_samples: int) -> Callable[[], Iterator[Any]]:
    """Return a reader of `n` ids that follow each other."""

    def read() -> Iterator[Any]:
        for first in np.random.default_rng(0).integers(0, len(word_idx), num_samples):
            yield tuple(int(first + place) % len(word_idx) for place in range(n))

    return read


dataset = SimpleNamespace(
    uci_housing=SimpleNamespace(train=lambda: uci_housing(404), test=lambda: uci_housing(102)),
    mnist=SimpleNamespace(
        train=lambda: images(640, 784, -1.0), test=lambda: images(200, 784, -1.0)
    ),
    cifar=SimpleNamespace(
        train10=lambda: images(32, 3072, 0.0), test10=lambda: images(16, 3072, 0.0)
    ),
    imikolov=SimpleNamespace(
        build_dict=build_dict,
        train=lambda word_idx, n: ngrams(word_idx, n, 2000),
        test=lambda word_idx, n: ngrams(word_idx, n, 100),
    ),
)

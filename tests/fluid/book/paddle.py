"""What the book's programs call `paddle`: its readers, and data sets made up in their shapes."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock import readers

batch = readers.batch
reader = readers

Reader = Callable[[], Iterator[Any]]

NUM_WORDS = 40
NUM_USERS = 12
NUM_CATEGORIES = 6
AGES = [1, 18, 25, 35, 45, 50, 56]
MAX_JOB = 4
NUM_VERBS = 10
NUM_LABELS = 7


def uci_housing(num_samples: int) -> Reader:
    """Return a reader of 13 features and a price that is their weighted sum, about 22."""
    generator = np.random.default_rng(num_samples)
    features = generator.normal(size=(num_samples, 13)).astype("float32")
    prices = 22 + features @ np.linspace(-3, 3, 13).astype("float32")

    def read() -> Iterator[Any]:
        yield from zip(features, prices[:, np.newaxis], strict=True)

    return read


def images(num_samples: int, size: int, low: float) -> Reader:
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


def ngrams(word_idx: dict[str, int], n: int, num_samples: int) -> Reader:
    """Return a reader of `n` ids that follow each other."""

    def read() -> Iterator[Any]:
        for first in np.random.default_rng(0).integers(0, len(word_idx), num_samples):
            yield tuple(int(first + place) % len(word_idx) for place in range(n))

    return read


def ratings(num_samples: int) -> Reader:
    """Return a reader of users, movies with categories and titles, and scores that both decide."""

    def read() -> Iterator[Any]:
        generator = np.random.default_rng(num_samples)
        for user, movie in generator.integers(1, NUM_USERS + 1, (num_samples, 2)).tolist():
            about_user = [user, user % 2, user % len(AGES), user % (MAX_JOB + 1)]
            categories = [movie % NUM_CATEGORIES, (movie + 1) % NUM_CATEGORIES][: 1 + movie % 2]
            title = [(movie + place) % NUM_WORDS for place in range(1 + movie % 4)]
            score = 5.0 if user % 2 == movie % 2 else 1.0
            yield [*about_user, movie, categories, title, [score]]

    return read


def reviews(word_idx: dict[str, int], num_samples: int) -> Reader:
    """Return a reader of ids of any length and of whether most of them are in the upper half."""

    def read() -> Iterator[Any]:
        generator = np.random.default_rng(num_samples)
        half = len(word_idx) // 2
        for label in generator.integers(0, 2, num_samples).tolist():
            words = generator.integers(0, half, generator.integers(1, 12)) + label * half
            yield words.tolist(), label

    return read


def sentences_with_roles(num_samples: int) -> Reader:
    """Return a reader of words, five around the predicate, it, its mark, and roles of words."""

    def read() -> Iterator[Any]:
        generator = np.random.default_rng(num_samples)
        for length in generator.integers(2, 9, num_samples).tolist():
            words = generator.integers(0, NUM_WORDS, length)
            place = int(generator.integers(0, length))
            around = [[int(words[min(max(place + k, 0), length - 1)])] for k in range(-2, 3)]
            is_near = np.abs(np.arange(length) - place) <= 2
            yield (
                words.tolist(),
                *[word * length for word in around],
                [int(words[place]) % NUM_VERBS] * length,
                is_near.astype(int).tolist(),
                (words % NUM_LABELS).tolist(),
            )

    return read


def translations(dict_size: int, num_samples: int) -> Reader:
    """Return a reader of sentences, begun and ended; their translation, begun, and ended.

    A translation is the sentence itself. Id 0 begins, 1 ends, 2 is an unknown word.
    """

    def read() -> Iterator[Any]:
        generator = np.random.default_rng(num_samples)
        for length in generator.integers(1, 5, num_samples).tolist():
            words = generator.integers(3, dict_size, length).tolist()
            yield [0, *words, 1], [0, *words], [*words, 1]

    return read


dataset = SimpleNamespace(
    uci_housing=SimpleNamespace(train=lambda: uci_housing(404), test=lambda: uci_housing(102)),
    mnist=SimpleNamespace(
        train=lambda: images(640, 784, -1.0), test=lambda: images(200, 784, -1.0)
    ),
    cifar=SimpleNamespace(
        train10=lambda: images(8, 3072, 0.0), test10=lambda: images(4, 3072, 0.0)
    ),
    imikolov=SimpleNamespace(
        build_dict=build_dict,
        train=lambda word_idx, n: ngrams(word_idx, n, 2000),
        test=lambda word_idx, n: ngrams(word_idx, n, 100),
    ),
    movielens=SimpleNamespace(
        train=lambda: ratings(400),
        test=lambda: ratings(60),
        max_user_id=lambda: NUM_USERS,
        max_movie_id=lambda: NUM_USERS,
        max_job_id=lambda: MAX_JOB,
        age_table=AGES,
        movie_categories=lambda: {f"category{n}": n for n in range(NUM_CATEGORIES)},
        get_movie_title_dict=build_dict,
    ),
    imdb=SimpleNamespace(
        word_dict=build_dict,
        train=lambda word_idx: reviews(word_idx, 300),
        test=lambda word_idx: reviews(word_idx, 60),
    ),
    conll05=SimpleNamespace(
        get_dict=lambda: (
            build_dict(),
            {f"verb{n}": n for n in range(NUM_VERBS)},
            {f"label{n}": n for n in range(NUM_LABELS)},
        ),
        # The published data set has a test part alone, which the book trains on.
        test=lambda: sentences_with_roles(200),
    ),
    wmt14=SimpleNamespace(
        train=lambda dict_size: translations(dict_size, 600),
        test=lambda dict_size: translations(dict_size, 60),
    ),
)

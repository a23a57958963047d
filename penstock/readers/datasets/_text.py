"""uci_housing and the text sets of Fluid's book, from their published archives."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.readers._errors import check_int, message
from penstock.readers.datasets import _files
from penstock.readers.datasets._embedded import Arrays, regression
from penstock.readers.datasets._registry import DatasetRequest, register_dataset
from penstock.readers.datasets._split import fixed_split

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@register_dataset("uci_housing")
def load_uci_housing(request: DatasetRequest) -> Arrays:
    """Load 506 districts of Boston: x [13] standardised, y [1] in 1000 dollars.

    Fluid's set, which standardised with the whole set's statistics and split in file order.
    """
    path = _files.find_members(
        request,
        ["housing.data"],
        "Get https://archive.ics.uci.edu/ml/machine-learning-databases/housing/housing.data",
    )
    table = np.loadtxt(path)
    if table.ndim != 2 or table.shape[1] != 14:
        raise ValueError(
            message(
                str(path),
                f"a table of shape {list(table.shape)}",
                "14 columns",
                "13 features and the price",
                "Get the file again",
            )
        )
    return regression(table[:, :-1], table[:, -1], request.split)


@register_dataset("imdb")
def load_imdb(request: DatasetRequest) -> Arrays:
    """Load IMDB reviews: words [256] int32, length, label 0 positive, 1 negative: Fluid's ids.

    The dictionary holds words seen more than 150 times in train and test, the most frequent
    first; its last id is `<unk>`. Texts are cut to `max_length` and padded with 0.
    """
    path = _files.find_members(
        request,
        ["aclImdb_v1.tar.gz", "aclImdb"],
        "Get https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    )
    counts: Counter[str] = Counter()
    texts: list[tuple[list[str], int]] = []
    with _files.members(path) as members:
        for name in sorted(members):
            found = re.search(r"(?:^|/)(train|test)/(pos|neg)/[^/]+\.txt$", name)
            if found is None:
                continue
            with members[name]() as file:
                words = file.read().decode("utf-8").rstrip("\n\r").translate(_NO_PUNCTUATION)
            tokens = words.lower().split()
            counts.update(tokens)
            if found[1] == request.split:
                texts.append((tokens, int(found[2] == "neg")))
    ids = _dictionary(counts, 150)
    max_length = check_int("dataset('imdb', max_length)", request.max_length or 256, 1, "Of words")
    sequences = [[ids.get(word, len(ids)) for word in words] for words, _ in texts]
    words, length = padded(sequences, max_length)
    return {
        "words": words,
        "length": length,
        "label": np.asarray([y for _, y in texts], np.int32),
    }


@register_dataset("sentiment")
def load_sentiment(request: DatasetRequest) -> Arrays:
    """Load NLTK's movie reviews: words [256] int32, length, label 0 negative, 1 positive.

    Every word and run of punctuation has an id, the most frequent first, in the order of their
    first use where they are as frequent. Reviews come negative, positive, negative, ...; the
    last fifth is the test split, as Fluid's was.
    """
    path = _files.find_members(
        request,
        ["movie_reviews.zip", "movie_reviews"],
        "Get https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/"
        "movie_reviews.zip",
    )
    texts: dict[str, list[list[str]]] = {"neg": [], "pos": []}
    with _files.members(path) as members:
        for name in sorted(members):
            found = re.search(r"(?:^|/)(neg|pos)/[^/]+\.txt$", name)
            if found is not None:
                with members[name]() as file:
                    text = file.read().decode("utf-8").lower()
                texts[found[1]].append(re.findall(r"\w+|[^\w\s]+", text))
    counts = Counter(word for kind in texts.values() for words in kind for word in words)
    ids = {word: number for number, (word, _) in enumerate(counts.most_common())}
    reviews = [
        ([ids[word] for word in words], label)
        for pair in zip(texts["neg"], texts["pos"], strict=True)
        for label, words in enumerate(pair)
    ]
    num_train = len(reviews) * 4 // 5
    chosen = reviews[:num_train] if request.split == "train" else reviews[num_train:]
    size = check_int("dataset('sentiment', max_length)", request.max_length or 256, 1, "Of words")
    words, length = padded([sequence for sequence, _ in chosen], size)
    label = np.asarray([label for _, label in chosen], np.int32)
    return {"words": words, "length": length, "label": label}


@register_dataset("imikolov")
def load_imikolov(request: DatasetRequest) -> Arrays:
    """Load the Penn treebank as 5-grams of word ids: firstw secondw thirdw forthw nextw.

    The dictionary holds words seen more than 50 times in train and validation, the most frequent
    first; its last id is `<unk>`. Sentences stand between `<s>` and `<e>`. The test split is the
    archive's validation file, as Fluid's was.
    """
    path = _files.find_members(
        request,
        ["simple-examples.tgz", "simple-examples"],
        "Get the Penn treebank archive of Mikolov's RNNLM toolkit, simple-examples.tgz",
    )
    with _files.members(path) as members:
        lines = {
            split: _files.read_member(members, f"data/ptb.{part}.txt", path).decode().splitlines()
            for split, part in (("train", "train"), ("test", "valid"))
        }
    counts = Counter(word for part in lines.values() for line in part for word in line.split())
    num_lines = sum(map(len, lines.values()))
    counts.update({"<s>": num_lines, "<e>": num_lines})
    del counts["<unk>"]
    ids = _dictionary(counts, 50)
    grams = []
    for line in lines[request.split]:
        words = ["<s>", *line.split(), "<e>"]
        sentence = [ids.get(word, len(ids)) for word in words]
        grams += [sentence[i : i + 5] for i in range(len(sentence) - 4)]
    columns = np.asarray(grams, np.int32).reshape(-1, 5).T
    names = ("firstw", "secondw", "thirdw", "forthw", "nextw")
    return dict(zip(names, np.ascontiguousarray(columns), strict=True))


@register_dataset("movielens")
def load_movielens(request: DatasetRequest) -> Arrays:
    """Load MovieLens 1M ratings: the inputs of Fluid's recommender, score [1] = 2 stars - 5.

    user_id, gender_id (0 male), age_id, job_id and movie_id are int32 scalars; category_id [6]
    and movie_title [16] are padded with 0, with category_length and title_length. Categories
    and title words are numbered in sorted order. A tenth is the test split.
    """
    path = _files.find_members(
        request,
        ["ml-1m.zip", "ml-1m"],
        "Get https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    )
    with _files.members(path) as members:
        tables = {
            name: _rows(_files.read_member(members, f"{name}.dat", path))
            for name in ("users", "movies", "ratings")
        }
    ages = {age: i for i, age in enumerate(sorted({int(row[2]) for row in tables["users"]}))}
    users = {
        int(user): (int(user), int(gender != "M"), ages[int(age)], int(job))
        for user, gender, age, job, _ in tables["users"]
    }
    movies, categories, titles = _movies(tables["movies"])
    ratings = np.asarray([row[:3] for row in tables["ratings"]], np.int64)
    ratings = ratings[fixed_split(len(ratings), request.split, test_share=10)]
    people = np.asarray([users[user] for user in ratings[:, 0].tolist()], np.int32)
    rows = np.asarray([movies[movie] for movie in ratings[:, 1].tolist()])
    return {
        "user_id": people[:, 0],
        "gender_id": people[:, 1],
        "age_id": people[:, 2],
        "job_id": people[:, 3],
        "movie_id": ratings[:, 1].astype(np.int32),
        "category_id": categories[0][rows],
        "category_length": categories[1][rows],
        "movie_title": titles[0][rows],
        "title_length": titles[1][rows],
        "score": (ratings[:, 2:3] * 2 - 5).astype(np.float32),
    }


def _rows(content: bytes) -> list[list[str]]:
    return [line.split("::") for line in content.decode("latin-1").split("\n") if line]


def _movies(table: list[list[str]]) -> tuple[dict[int, int], Any, Any]:
    """Return movie id -> row, and for each row padded categories and title words with lengths."""
    kinds = [row[2].split("|") for row in table]
    words = [re.sub(r"\(\d{4}\)$", "", row[1]).lower().split() for row in table]
    return (
        {int(row[0]): number for number, row in enumerate(table)},
        padded(_numbered(kinds), 6),
        padded(_numbered(words), 16),
    )


def _numbered(lists: list[list[str]]) -> list[list[int]]:
    ids = {word: i for i, word in enumerate(sorted({word for one in lists for word in one}))}
    return [[ids[word] for word in one] for one in lists]


def _dictionary(counts: Counter[str], cutoff: int) -> dict[str, int]:
    """Return word -> id for words seen more than `cutoff` times, the most frequent first."""
    kept = [word for word, count in counts.items() if count > cutoff]
    kept.sort(key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(kept)}


def padded(
    sequences: Iterable[Sequence[int]], max_length: int, value: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences cut or padded to `[N, max_length]` int32, and lengths `[N]`.

    >>> ids, length = padded([[1, 2, 3], [4]], 2)
    >>> ids.tolist(), length.tolist()
    ([[1, 2], [4, 0]], [2, 1])
    """
    cut = [list(sequence[:max_length]) for sequence in sequences]
    out = np.full((len(cut), max_length), value, np.int32)
    for row, sequence in enumerate(cut):
        out[row, : len(sequence)] = sequence
    return out, np.asarray([len(sequence) for sequence in cut], np.int32)

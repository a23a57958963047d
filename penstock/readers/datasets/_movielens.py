"""movielens, from its published archive."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

import numpy as np

from penstock.readers._archives import FileContent, read_by_name
from penstock.readers.datasets import registry
from penstock.readers.datasets._embedded import Arrays
from penstock.readers.datasets._text import Sequences
from penstock.readers.datasets.splits import fixed_split

# As published: the ids are these, and 1,000,209 ratings.
_LAST_USER, _LAST_MOVIE, _LAST_JOB = 6040, 3952, 20
_AGES = (1, 18, 25, 35, 45, 50, 56)
_MAX_RATINGS = 1_100_000
# A tenth of fewer is none.
_MIN_RATINGS = 10


@registry.register_dataset("movielens")
def load_movielens(request: registry.DatasetRequest) -> Arrays:
    """Load MovieLens 1M ratings: the inputs of Fluid's recommender, score [1] = 2 stars - 5.

    user_id, gender_id (0 male), age_id, job_id and movie_id are int32 scalars; category_id [6]
    and movie_title [16] are padded with 0, with category_length and title_length. Categories
    and title words are numbered in sorted order. A tenth is the test split.
    """
    path = registry.find_members(
        request,
        ["ml-1m.zip", "ml-1m"],
        "Get https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    )
    names = ("users.dat", "movies.dat", "ratings.dat")
    files = read_by_name(path, names, registry.text_limits(50, 64))
    users = _read_users(files["users.dat"])
    row_of_movie, categories, titles = _read_movies(files["movies.dat"])
    ratings = _read_ratings(files["ratings.dat"], users[:, 0] >= 0, row_of_movie >= 0)
    ratings = ratings[fixed_split(len(ratings), request.split, test_share=10)]
    people = users[ratings[:, 0]]
    rows = row_of_movie[ratings[:, 1]]
    return {
        "user_id": ratings[:, 0],
        "gender_id": people[:, 0],
        "age_id": people[:, 1],
        "job_id": people[:, 2],
        "movie_id": ratings[:, 1],
        "category_id": categories[0][rows],
        "category_length": categories[1][rows],
        "movie_title": titles[0][rows],
        "title_length": titles[1][rows],
        "score": (ratings[:, 2:3] * 2 - 5).astype(np.float32),
    }


def _read_fields(file: FileContent, columns: str) -> Iterator[tuple[int, list[str]]]:
    num_fields = columns.count("::") + 1
    for number, line in enumerate(file.lines("latin-1"), 1):
        if line:
            fields = line.split("::")
            if len(fields) != num_fields:
                got = f"{len(fields)} fields in line {number}"
                raise file.error(got, f"{num_fields}, {columns}", "It is damaged")
            yield number, fields


def _parse_number(
    file: FileContent, line: int, name: str, text: str, allowed: range | tuple
) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if value not in allowed:
        expected = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else f"{allowed}"
        got = f"{name} {text[:40]!r} in line {line}"
        raise file.error(got, expected, "The set has no other")
    return value


def _read_users(file: FileContent) -> np.ndarray:
    """Return gender, age and job by user, `[6041, 3]` int32, -1 where there is no such user."""
    table = np.full((_LAST_USER + 1, 3), -1, np.int32)
    for line, (user, gender, age, job, _) in _read_fields(file, "user::gender::age::job::zip"):
        if gender not in ("F", "M"):
            raise file.error(f"gender {gender[:40]!r} in line {line}", "F or M", "It is damaged")
        row = _parse_number(file, line, "user", user, range(1, _LAST_USER + 1))
        age = _parse_number(file, line, "age", age, _AGES)
        job = _parse_number(file, line, "job", job, range(_LAST_JOB + 1))
        _check_first(file, line, f"user {row}", table[row, 0] < 0)
        table[row] = gender != "M", age, job
    ages = np.unique(table[table[:, 0] >= 0, 1])
    table[:, 1] = np.searchsorted(ages, table[:, 1])
    return table


def _read_movies(
    file: FileContent,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the row by movie, -1 for none, and padded categories and title words with lengths."""
    row_of = np.full(_LAST_MOVIE + 1, -1, np.int32)
    kinds: list[list[str]] = []
    words: list[list[str]] = []
    for line, (movie, title, categories) in _read_fields(file, "movie::title::categories"):
        number = _parse_number(file, line, "movie", movie, range(1, _LAST_MOVIE + 1))
        _check_first(file, line, f"movie {number}", row_of[number] < 0)
        row_of[number] = len(kinds)
        kinds.append(categories.split("|"))
        # Without the year, as Fluid has titles.
        words.append(re.sub(r"\(\d{4}\)$", "", title).lower().split())
    return row_of, _number_words(kinds, 6), _number_words(words, 16)


def _check_first(file: FileContent, line: int, what: str, is_first: bool) -> None:
    if not is_first:
        raise file.error(f"{what} again in line {line}", "each once", "It is damaged")


def _number_words(lists: list[list[str]], max_length: int) -> tuple[np.ndarray, np.ndarray]:
    ids = {word: i for i, word in enumerate(sorted({word for words in lists for word in words}))}
    sequences = Sequences(max_length)
    for words in lists:
        sequences.append([ids[word] for word in words])
    return sequences.pad()


def _read_ratings(file: FileContent, is_user: np.ndarray, is_movie: np.ndarray) -> np.ndarray:
    """Return user, movie and stars, `[N, 3]` int32."""
    values = array("i")
    for line, (user, movie, stars, _) in _read_fields(file, "user::movie::stars::time"):
        who = _parse_number(file, line, "user", user, range(1, _LAST_USER + 1))
        what = _parse_number(file, line, "movie", movie, range(1, _LAST_MOVIE + 1))
        if not (is_user[who] and is_movie[what]):
            got = f"user {who} and movie {what} in line {line}"
            raise file.error(got, "those of users.dat and movies.dat", "The files do not fit")
        values.extend((who, what, _parse_number(file, line, "stars", stars, range(1, 6))))
        if len(values) > 3 * _MAX_RATINGS:
            expected = f"at most {_MAX_RATINGS}"
            raise file.error(f"more than {_MAX_RATINGS} ratings", expected, "It has 1,000,209")
    ratings = np.asarray(values, np.int32).reshape(-1, 3)
    if len(ratings) < _MIN_RATINGS:
        got, expected = f"{len(ratings)} ratings", f"{_MIN_RATINGS} or more"
        raise file.error(got, expected, "A tenth is the test split")
    return ratings

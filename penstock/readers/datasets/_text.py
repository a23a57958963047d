"""uci_housing and the text sets of Fluid's book, from their published archives."""

from __future__ import annotations

import io
import re
import string
import sys
import warnings
from array import array
from collections import Counter

import numpy as np

from penstock.readers._archives import FileContent, read_by_name, read_file, read_files
from penstock.readers.datasets import _words, registry
from penstock.readers.datasets._embedded import Arrays, build_table

_PUNCTUATION = string.punctuation.encode()
_HOUSING_COLUMNS = 14
# A whole file of numbers as large as this would still be read; the one published has 49,082 bytes.
_HOUSING_BYTES = 1 << 20
_IMDB_REVIEW = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/[^/.][^/]*\.txt")
_SENTIMENT_REVIEW = re.compile(r"(?:.*/)?(neg|pos)/[^/.][^/]*\.txt")
# 42,068 and 3,370 as published.
_PTB_LINES = 100_000


@registry.register_dataset("uci_housing")
def load_uci_housing(request: registry.DatasetRequest) -> Arrays:
    """Load 506 districts of Boston: x [13] standardised, y [1] in 1000 dollars.

    Fluid's set, which standardised with the whole set's statistics and split in file order.
    """
    path = registry.find_members(
        request,
        ["housing.data"],
        "Get https://archive.ics.uci.edu/ml/machine-learning-databases/housing/housing.data",
    )
    table = _parse_table(read_file(path, _HOUSING_BYTES))
    return build_table(table[:, :-1], table[:, -1], request.split)


def _parse_table(file: FileContent) -> np.ndarray:
    expected = f"5 or more lines of {_HOUSING_COLUMNS} numbers"
    why = "13 features and the price stand in each"
    try:
        # numpy warns of an empty file, which is an error below.
        with warnings.catch_warnings(action="ignore"):
            table = np.loadtxt(io.BytesIO(file.content), ndmin=2)
    except (ValueError, OverflowError) as error:
        got = f"what is no table ({error})"
        raise file.error(got, expected, why) from error
    if table.shape[1] != _HOUSING_COLUMNS or len(table) < 5:
        raise file.error(f"a table of shape {list(table.shape)}", expected, why)
    if not (np.abs(table) < 1e6).all():
        row = int(np.flatnonzero(~(np.abs(table) < 1e6).all(axis=1))[0])
        raise file.error(f"{table[row].tolist()} in row {row}", expected, "All are below 1000")
    return table


@registry.register_dataset("imdb")
def load_imdb(request: registry.DatasetRequest) -> Arrays:
    """Load IMDB reviews: words [256] int32, length, label 0 positive, 1 negative: Fluid's ids.

    Words are bytes, so that the ids are Fluid's: without ASCII punctuation, ASCII letters lowered,
    divided at ASCII white space. The dictionary holds those seen more than 150 times in train and
    test, the most frequent first and then by their bytes; its last id is `<unk>`. Positive reviews
    come first, in the archive's order, sorted where it is unpacked. Texts are cut to `max_length`
    and padded with 0.
    """
    path = registry.find_members(
        request,
        ["aclImdb_v1.tar.gz", "aclImdb"],
        "Get https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    )
    limits = registry.text_limits(1, 1024, num_entries=200_000)
    max_length = _words.get_max_length(request, 256)
    counts: Counter[bytes] = Counter()
    # A word that comes again is the same object: each is kept once.
    once: dict[bytes, bytes] = {}
    kept: dict[str, list[list[bytes]]] = {"pos": [], "neg": []}
    for name, file in read_files(path, _IMDB_REVIEW.fullmatch, limits):
        words = split_imdb_words(file.content)
        counts.update(words)
        split, kind = _split_name(name)
        if split == request.split:
            kept[kind].append([once.setdefault(word, word) for word in words[:max_length]])
    if not any(kept.values()):
        got, why = f"no file {request.split}/pos/*.txt", "It is another archive"
        raise FileContent(path=path).error(got, "the original's reviews", why)
    ids = _words.number_frequent_words(counts, 150)
    sequences = _words.Sequences(max_length)
    for review in (*kept["pos"], *kept["neg"]):
        sequences.append([ids.get(word, len(ids)) for word in review])
    words, length = sequences.pad()
    labels = np.arange(len(sequences)) >= len(kept["pos"])
    return {"words": words, "length": length, "label": labels.astype(np.int32)}


def split_imdb_words(review: bytes) -> list[bytes]:
    r"""Return the words of a review as Fluid's `imdb` finds them.

    >>> split_imdb_words("Don't<br />a Caf\u00c9!\n".encode())
    [b'dontbr', b'a', b'caf\xc3\x89']
    """
    return review.translate(None, _PUNCTUATION).lower().split()


def _split_name(name: str) -> tuple[str, str]:
    split, kind, _ = name.rsplit("/", 2)
    return split.rpartition("/")[2], kind


@registry.register_dataset("sentiment")
def load_sentiment(request: registry.DatasetRequest) -> Arrays:
    """Load NLTK's movie reviews: words [256] int32, length, label 0 negative, 1 positive.

    Every word and run of punctuation has an id, the most frequent first, in the order of their
    first use where they are as frequent. Reviews come negative, positive, negative, ...; the
    last fifth is the test split, as Fluid's was.
    """
    path = registry.find_members(
        request,
        ["movie_reviews.zip", "movie_reviews"],
        "Get https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/"
        "movie_reviews.zip",
    )
    files = dict(read_files(path, _SENTIMENT_REVIEW.fullmatch, registry.text_limits(1, 64)))
    max_length = _words.get_max_length(request, 256)
    counts: Counter[str] = Counter()
    reviews: dict[str, list[list[str]]] = {"neg": [], "pos": []}
    for name in sorted(files):
        text = "\n".join(files[name].lines()).lower()
        words = list(map(sys.intern, re.findall(r"\w+|[^\w\s]+", text)))
        counts.update(words)
        reviews[_split_name(f"/{name}")[1]].append(words[:max_length])
    num_negative, num_positive = map(len, reviews.values())
    if num_negative != num_positive or num_negative < 3:
        got = f"{num_negative} negative and {num_positive} positive reviews"
        why = "They come in turns, and the last fifth is the test split"
        raise FileContent(path=path).error(got, "3 or more of each, as many of both", why)
    ids = {word: number for number, (word, _) in enumerate(counts.most_common())}
    pairs = zip(reviews["neg"], reviews["pos"], strict=True)
    turns = [(review, label) for pair in pairs for label, review in enumerate(pair)]
    num_train = len(turns) * 4 // 5
    turns = turns[:num_train] if request.split == "train" else turns[num_train:]
    chosen = _words.Sequences(max_length)
    for review, _ in turns:
        chosen.append([ids[word] for word in review])
    words, length = chosen.pad()
    labels = np.asarray([label for _, label in turns], np.int32)
    return {"words": words, "length": length, "label": labels}


@registry.register_dataset("imikolov")
def load_imikolov(request: registry.DatasetRequest) -> Arrays:
    """Load the Penn treebank as 5-grams of word ids: firstw secondw thirdw forthw nextw.

    The dictionary holds words seen more than 50 times in train and validation, the most frequent
    first; its last id is `<unk>`. Sentences stand between `<s>` and `<e>`. The test split is the
    archive's validation file, as Fluid's was.
    """
    path = registry.find_members(
        request,
        ["simple-examples.tgz", "simple-examples"],
        "Get the Penn treebank archive of Mikolov's RNNLM toolkit, simple-examples.tgz",
    )
    names = {"train": "data/ptb.train.txt", "test": "data/ptb.valid.txt"}
    files = read_by_name(path, list(names.values()), registry.text_limits(16, 1024))
    counts: Counter[str] = Counter()
    for file in files.values():
        for number, line in enumerate(file.lines()):
            if number == _PTB_LINES:
                raise file.error(f"more than {number} lines", f"at most {number}", "It has 42,068")
            counts.update(["<s>", *line.split(), "<e>"])
    # The text has it as a word; its id is the last, whatever its count.
    del counts["<unk>"]
    ids = _words.number_frequent_words(counts, 50)
    words, owner = array("i"), array("i")
    file = files[names[request.split]]
    for number, line in enumerate(file.lines()):
        sentence = [ids.get(word, len(ids)) for word in ("<s>", *line.split(), "<e>")]
        words.extend(sentence)
        owner.extend([number] * len(sentence))
    flat, line_of = np.asarray(words, np.int32), np.asarray(owner)
    num_grams = max(len(flat) - 4, 0)
    is_gram = line_of[:num_grams] == line_of[len(line_of) - num_grams :]
    if not is_gram.any():
        raise file.error("no sentence of three words", "the original's", "A sample is five words")
    columns = [flat[i : i + num_grams][is_gram] for i in range(5)]
    return dict(zip(("firstw", "secondw", "thirdw", "forthw", "nextw"), columns, strict=True))

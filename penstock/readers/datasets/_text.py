"""uci_housing and the sets of words of Fluid's book, from their published archives."""

from __future__ import annotations

import io
import re
import string
import sys
import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from penstock._errors import check_int
from penstock.readers._archives import FileContent, read_by_name, read_file, read_files
from penstock.readers.datasets import registry
from penstock.readers.datasets._embedded import Arrays, build_table
from penstock.readers.datasets.registry import DatasetRequest

Word = TypeVar("Word", str, bytes)


def number_frequent_words(counts: Counter[Word], cutoff: int) -> dict[Word, int]:
    """Return word -> id for words seen more than `cutoff` times, the most frequent first.

    Words as frequent as each other stand in their own order.

    >>> number_frequent_words(Counter({"b": 3, "a": 3, "c": 4, "d": 2}), 2)
    {'c': 0, 'a': 1, 'b': 2}
    """
    kept = [word for word, count in counts.items() if count > cutoff]
    kept.sort(key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(kept)}


class Sequences:
    """Sequences of ids, cut to a length, as padded arrays."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        # Flat: a million short lists take more memory than the ids in them.
        self._ids, self._lengths = array("i"), array("i")

    def __len__(self) -> int:
        return len(self._lengths)

    def append(self, ids: Sequence[int]) -> None:
        cut = ids[: self._max_length]
        self._ids.extend(cut)
        self._lengths.append(len(cut))

    def pad(self, value: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return them `[N, max_length]` int32 with `value` behind them, and lengths `[N]`."""
        lengths = np.asarray(self._lengths, np.int32)
        out = np.full((len(lengths), self._max_length), value, np.int32)
        out[np.arange(self._max_length) < lengths[:, np.newaxis]] = self._ids
        return out, lengths


def get_max_length(request: DatasetRequest, default: int) -> int:
    thing = f"dataset({request.name!r}, max_length)"
    return check_int(thing, request.max_length or default, 1, "Of words.")


def number_lines(file: FileContent, limit: int | None = None) -> dict[str, int]:
    """Return word -> number of line of a dictionary, of the first `limit` lines."""
    lines = islice(file.lines(), limit)
    ids = {word: number for number, line in enumerate(lines) if (word := line.strip())}
    if not ids:
        raise file.error("no word", "a word in each line", "It is the set's dictionary")
    return ids


_PUNCTUATION = string.punctuation.encode()
_HOUSING_COLUMNS = 14
# A whole file of numbers as large as this would still be read; the one published has 49,082 bytes.
_HOUSING_BYTES = 1 << 20
_IMDB_REVIEW = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/[^/.][^/]*\.txt")
_SENTIMENT_REVIEW = re.compile(r"(?:.*/)?(neg|pos)/[^/.][^/]*\.txt")
# 42,068 and 3,370 as published.
_PTB_LINES = 100_000


@registry.register_dataset("uci_housing")
def load_uci_housing(request: DatasetRequest) -> Arrays:
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
def load_imdb(request: DatasetRequest) -> Arrays:
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
    max_length = get_max_length(request, 256)
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
    ids = number_frequent_words(counts, 150)
    sequences = Sequences(max_length)
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
def load_sentiment(request: DatasetRequest) -> Arrays:
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
    max_length = get_max_length(request, 256)
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
    chosen = Sequences(max_length)
    for review, _ in turns:
        chosen.append([ids[word] for word in review])
    words, length = chosen.pad()
    labels = np.asarray([label for _, label in turns], np.int32)
    return {"words": words, "length": length, "label": labels}


@registry.register_dataset("imikolov")
def load_imikolov(request: DatasetRequest) -> Arrays:
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
    ids = number_frequent_words(counts, 50)
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


_HOST = "http://paddlemodels.bj.bcebos.com"
# That of the machine translation chapter of Fluid's book.
_DICTIONARY_SIZE = 30_000
# wmt14's dictionaries begin with <s>, <e>, <unk>.
_END, _UNKNOWN = 1, 2
_LONGEST = 80
Pair = tuple[list[int], list[int]]
# wmt14 has 193,319, wmt16 29,000; each takes a kilobyte when it is padded.
_MAX_PAIRS = 250_000
# All words of the training split, with <s>, <e> and <unk>.
_WMT16_WORDS = (11_250, 19_220)


@registry.register_dataset("wmt14")
def load_wmt14(request: DatasetRequest) -> Arrays:
    """Load Fluid's part of WMT14 French to English: word ids, padded with `<e>`.

    src_word_id [82] is `<s> ... <e>`; target_language_word [82] is `<s> ...` and
    target_language_next_word [82] the same a word later, `... <e>`; all int32, with src_length
    and trg_length. The first 30,000 words of each dictionary have ids, others are `<unk>`, 2.
    Pairs longer than 80 are left out.
    """
    path = registry.find_members(request, ["wmt14.tgz", "wmt14"], f"Get {_HOST}/wmt/wmt14.tgz")
    text = f"{request.split}/{request.split}"
    files = read_by_name(path, ["src.dict", "trg.dict", text], registry.text_limits(256, 1024))
    source_ids = number_lines(files["src.dict"], _DICTIONARY_SIZE)
    target_ids = number_lines(files["trg.dict"], _DICTIONARY_SIZE)
    pairs = _number_pairs(files[text], source_ids, target_ids)
    short = (pair for pair in pairs if len(pair[0]) + 2 <= _LONGEST and len(pair[1]) <= _LONGEST)
    return _build_arrays(short, get_max_length(request, 82), files[text])


@registry.register_dataset("wmt16", splits=["train", "test", "validation"])
def load_wmt16(request: DatasetRequest) -> Arrays:
    """Load Fluid's WMT16 English to German of the multimodal task: word ids, padded with `<e>`.

    src_word_id [64] is `<s> ... <e>`; target_language_word [64] is `<s> ...` and
    target_language_next_word [64] the same a word later, `... <e>`; all int32, with src_length
    and trg_length. The dictionaries are the training split's words, the most frequent first and
    then in the order of their first use, behind `<s>`, `<e>` and `<unk>`: 11,250 of English,
    19,220 of German. Longer sentences are cut.
    """
    path = registry.find_members(
        request, ["wmt16.tar.gz", "wmt16"], f"Get {_HOST}/wmt/wmt16.tar.gz"
    )
    part = "wmt16/val" if request.split == "validation" else f"wmt16/{request.split}"
    names = sorted({"wmt16/train", part})
    files = read_by_name(path, names, registry.text_limits(32, 64))
    english, german = (
        _number_most_frequent(
            (pair[side] for pair in _read_pairs(files["wmt16/train"])), _WMT16_WORDS[side]
        )
        for side in range(2)
    )
    pairs = _number_pairs(files[part], english, german)
    return _build_arrays(pairs, get_max_length(request, 64), files[part])


def _read_pairs(file: FileContent) -> Iterator[tuple[str, str]]:
    """Yield the sentences of each line that holds two, divided by a tab."""
    number = 0
    for line in file.lines():
        source, tab, target = line.strip().partition("\t")
        if not tab or "\t" in target:
            continue
        number += 1
        if number > _MAX_PAIRS:
            got, expected = f"more than {_MAX_PAIRS} pairs", f"at most {_MAX_PAIRS}"
            raise file.error(got, expected, "The original does not hold that many")
        yield source, target


def _number_most_frequent(sentences: Iterable[str], size: int) -> dict[str, int]:
    """Return word -> id for `size` words, `<s>`, `<e>` and `<unk>` among them."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    words = ["<s>", "<e>", "<unk>", *(word for word, _ in counts.most_common(size - 3))]
    return {word: number for number, word in enumerate(words)}


def _number_pairs(
    file: FileContent, source_ids: dict[str, int], target_ids: dict[str, int]
) -> Iterator[Pair]:
    for source, target in _read_pairs(file):
        yield (
            [source_ids.get(word, _UNKNOWN) for word in source.split()],
            [target_ids.get(word, _UNKNOWN) for word in target.split()],
        )


def _build_arrays(pairs: Iterable[Pair], size: int, file: FileContent) -> Arrays:
    sources, targets, following = (Sequences(size) for _ in range(3))
    for source, target in pairs:
        sources.append([0, *source, _END])
        targets.append([0, *target])
        following.append([*target, _END])
    if not len(sources):
        got, expected = "no pair of sentences", "one or more, a tab within"
        raise file.error(got, expected, "Each line holds a sentence and its translation")
    src, src_length = sources.pad(_END)
    trg, trg_length = targets.pad(_END)
    return {
        "src_word_id": src,
        "src_length": src_length,
        "target_language_word": trg,
        "target_language_next_word": following.pad(_END)[0],
        "trg_length": trg_length,
    }

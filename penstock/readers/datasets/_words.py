"""Words and their ids: counted, numbered, and gathered to padded arrays."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from penstock.readers._archives import FileContent
from penstock.readers._errors import check_int
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
    return check_int(thing, request.max_length or default, 1, "Of words")


def number_lines(file: FileContent, limit: int | None = None) -> dict[str, int]:
    """Return word -> number of line of a dictionary, of the first `limit` lines."""
    lines = islice(file.lines(), limit)
    ids = {word: number for number, line in enumerate(lines) if (word := line.strip())}
    if not ids:
        raise file.error("no word", "a word in each line", "It is the set's dictionary")
    return ids

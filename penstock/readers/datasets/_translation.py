"""wmt14 and wmt16, Fluid's translation sets, from their published archives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from penstock.readers._archives import FileContent, read_by_name
from penstock.readers.datasets import registry
from penstock.readers.datasets._embedded import Arrays
from penstock.readers.datasets._words import Sequences, get_max_length, number_lines

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
def load_wmt14(request: registry.DatasetRequest) -> Arrays:
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
def load_wmt16(request: registry.DatasetRequest) -> Arrays:
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

"""wmt14, wmt16 and conll05: the sequence sets of Fluid's book, from their published archives."""

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.readers._errors import check_int, message
from penstock.readers.datasets import _files
from penstock.readers.datasets._embedded import Arrays
from penstock.readers.datasets._registry import DatasetRequest, missing, register_dataset
from penstock.readers.datasets._text import padded

_HOST = "http://paddlemodels.bj.bcebos.com"
_DICTIONARY_SIZE = 30_000  # of the book's machine translation chapter
_END, _UNKNOWN = 1, 2  # wmt14's dictionaries begin with <s>, <e>, <unk>
_LONGEST = 80
_WMT16_WORDS = (11_250, 19_220)  # all there are, with <s>, <e> and <unk>


@register_dataset("wmt14")
def load_wmt14(request: DatasetRequest) -> Arrays:
    """Load Fluid's part of WMT14 French to English: word ids, padded with `<e>`.

    src_word_id [82] is `<s> ... <e>`; target_language_word [82] is `<s> ...` and
    target_language_next_word [82] the same a word later, `... <e>`; all int32, with src_length
    and trg_length. The first 30,000 words of each dictionary have ids, others are `<unk>`, 2.
    Pairs longer than 80 are left out.
    """
    path = _files.find_members(request, ["wmt14.tgz", "wmt14"], f"Get {_HOST}/wmt/wmt14.tgz")
    with _files.members(path) as files:
        source_ids = _numbered_lines(_files.read_member(files, "src.dict", path))
        target_ids = _numbered_lines(_files.read_member(files, "trg.dict", path))
        text = _files.read_member(files, f"{request.split}/{request.split}", path).decode()
    sources, targets = [], []
    for line in text.split("\n"):
        pair = line.strip().split("\t")
        if len(pair) != 2:
            continue
        source = [0, *(source_ids.get(word, _UNKNOWN) for word in pair[0].split()), _END]
        target = [target_ids.get(word, _UNKNOWN) for word in pair[1].split()]
        if len(source) <= _LONGEST and len(target) <= _LONGEST:
            sources.append(source)
            targets.append(target)
    size = check_int("dataset('wmt14', max_length)", request.max_length or 82, 1, "Of words")
    return _translation(sources, targets, size)


@register_dataset("wmt16", splits=["train", "test", "validation"])
def load_wmt16(request: DatasetRequest) -> Arrays:
    """Load Fluid's WMT16 English to German of the multimodal task: word ids, padded with `<e>`.

    src_word_id [64] is `<s> ... <e>`; target_language_word [64] is `<s> ...` and
    target_language_next_word [64] the same a word later, `... <e>`; all int32, with src_length
    and trg_length. The dictionaries are the training split's words, the most frequent first and
    then in the order of their first use, behind `<s>`, `<e>` and `<unk>`: 11,250 of English,
    19,220 of German. Longer sentences are cut.
    """
    path = _files.find_members(request, ["wmt16.tar.gz", "wmt16"], f"Get {_HOST}/wmt/wmt16.tar.gz")
    part = "val" if request.split == "validation" else request.split
    with _files.members(path) as files:
        lines = {
            name: _files.read_member(files, f"wmt16/{name}", path).decode().split("\n")
            for name in {"train", part}
        }
    pairs = {
        name: [pair for line in each if len(pair := line.strip().split("\t")) == 2]
        for name, each in lines.items()
    }
    english, german = (
        _most_frequent((pair[side] for pair in pairs["train"]), _WMT16_WORDS[side])
        for side in range(2)
    )
    sources = [
        [0, *(english.get(word, _UNKNOWN) for word in source.split()), _END]
        for source, _ in pairs[part]
    ]
    targets = [[german.get(word, _UNKNOWN) for word in target.split()] for _, target in pairs[part]]
    size = check_int("dataset('wmt16', max_length)", request.max_length or 64, 1, "Of words")
    return _translation(sources, targets, size)


def _most_frequent(sentences: Iterable[str], size: int) -> dict[str, int]:
    """Return word -> id for `size` words, `<s>`, `<e>` and `<unk>` among them."""
    counts = Counter(word for sentence in sentences for word in sentence.split())
    words = ["<s>", "<e>", "<unk>", *(word for word, _ in counts.most_common(size - 3))]
    return {word: number for number, word in enumerate(words)}


def _translation(sources: list[list[int]], targets: list[list[int]], size: int) -> Arrays:
    """Return a translator's inputs; the sources have their `<s>` and `<e>` already."""
    src, src_length = padded(sources, size, _END)
    trg, trg_length = padded([[0, *target] for target in targets], size, _END)
    following, _ = padded([[*target, _END] for target in targets], size, _END)
    return {
        "src_word_id": src,
        "src_length": src_length,
        "target_language_word": trg,
        "target_language_next_word": following,
        "trg_length": trg_length,
    }


@register_dataset("conll05", splits=["test"])
def load_conll05(request: DatasetRequest) -> Arrays:
    """Load the public test part of CoNLL 2005, a sample for each verb of a sentence.

    The nine inputs of Fluid's role labelling, each [100] int32 padded with 0, with length:
    word_data; ctx_n2_data to ctx_p2_data, the words around the verb, repeated; verb_data, the
    verb, repeated; mark_data, 1 around the verb; target, the labels. Labels are numbered in the
    order of the dictionary file, B before I, O last.
    """
    how = f"Get {_HOST}/conll05st/conll05st-tests.tar.gz and, from {_HOST}/, conll05st%2F<name>"
    path = _files.find_members(request, ["conll05st-tests.tar.gz", "conll05st-release"], how)
    words, verbs, labels = _dictionaries(request, how)
    rows: dict[str, list[list[int]]] = {name: [] for name in _CONLL05_INPUTS}
    for sentence, verb, tags in _propositions(path):
        at = tags.index("B-V")
        around = {-2: "ctx_n2", -1: "ctx_n1", 0: "ctx_0", 1: "ctx_p1", 2: "ctx_p2"}
        for offset, name in around.items():
            is_inside = 0 <= at + offset < len(sentence)
            word = sentence[at + offset] if is_inside else "bos" if offset < 0 else "eos"
            rows[f"{name}_data"].append([words.get(word, 0)] * len(sentence))
        rows["word_data"].append([words.get(word, 0) for word in sentence])
        rows["verb_data"].append([verbs[verb]] * len(sentence))
        rows["mark_data"].append([int(abs(i - at) <= 2) for i in range(len(sentence))])
        rows["target"].append([labels[tag] for tag in tags])
    size = check_int("dataset('conll05', max_length)", request.max_length or 100, 1, "Of words")
    columns = {name: padded(each, size) for name, each in rows.items()}
    length = columns["word_data"][1]
    return {**{name: column for name, (column, _) in columns.items()}, "length": length}


_CONLL05_INPUTS = (
    "word_data",
    "ctx_n2_data",
    "ctx_n1_data",
    "ctx_0_data",
    "ctx_p1_data",
    "ctx_p2_data",
    "verb_data",
    "mark_data",
    "target",
)


def _dictionaries(request: DatasetRequest, how: str) -> tuple[dict[str, int], ...]:
    names = ("wordDict.txt", "verbDict.txt", "targetDict.txt")
    absent = [name for name in names if not (request.folder / name).is_file()]
    if absent:
        raise missing(request, absent, how)
    words, verbs, tags = (
        _numbered_lines((request.folder / name).read_bytes(), None) for name in names
    )
    kinds = dict.fromkeys(tag[2:] for tag in tags if tag.startswith(("B-", "I-")))
    labels = [f"{side}-{kind}" for kind in kinds for side in "BI"]
    return words, verbs, {label: number for number, label in enumerate([*labels, "O"])}


def _numbered_lines(content: bytes, limit: int | None = _DICTIONARY_SIZE) -> dict[str, int]:
    lines = content.decode().split("\n")[:limit]
    return {line.strip(): number for number, line in enumerate(lines) if line.strip()}


def _propositions(path: Path) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield words, verb and tags for each verb of each sentence."""
    with _files.members(path) as files:
        texts = [
            gzip.decompress(_files.read_member(files, f"test.wsj/{name}/test.wsj.{name}.gz", path))
            for name in ("words", "props")
        ]
    sentence: list[str] = []
    columns: list[list[str]] = []
    lines = zip(*(text.decode().split("\n") for text in texts), strict=False)
    for word, marks in [*lines, ("", "")]:
        if marks.strip():
            sentence.append(word.strip())
            columns.append(marks.split())
            continue
        by_verb = [list(column) for column in zip(*columns, strict=True)]
        verbs = [verb for verb in (by_verb[0] if by_verb else []) if verb != "-"]
        for verb, spans in zip(verbs, by_verb[1:], strict=True):
            yield sentence, verb, bio_tags(spans)
        sentence, columns = [], []


def bio_tags(spans: list[str]) -> list[str]:
    """Return B, I and O tags of a column of bracketed spans.

    Raises:
      ValueError: a mark that is no part of a span.

    >>> bio_tags(["(A0*", "*)", "(V*)", "*"])
    ['B-A0', 'I-A0', 'B-V', 'O']
    """
    tags, kind = [], ""
    for mark in spans:
        if "*" not in mark:
            raise ValueError(
                message(
                    "conll05",
                    f"the mark {mark!r}",
                    "'*' with brackets around it",
                    "A column of the props file brackets spans",
                    "Get the archive again",
                )
            )
        if mark.startswith("("):
            kind = mark[1 : mark.index("*")]
            tags.append(f"B-{kind}")
        else:
            tags.append(f"I-{kind}" if kind else "O")
        if mark.endswith(")"):
            kind = ""
    return tags

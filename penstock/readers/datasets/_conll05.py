"""conll05, the role labelling set of Fluid's book, from its published archive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from penstock.readers._archives import FileContent, gunzip, read_by_name, read_file
from penstock.readers.datasets import registry
from penstock.readers.datasets._embedded import Arrays
from penstock.readers.datasets._text import Sequences, get_max_length, number_lines

_HOST = "http://paddlemodels.bj.bcebos.com"
_INPUTS = (
    *("word_data", "ctx_n2_data", "ctx_n1_data", "ctx_0_data", "ctx_p1_data", "ctx_p2_data"),
    *("verb_data", "mark_data", "target"),
)
# By the distance from the verb, -2 to 2.
_AROUND = dict(enumerate(_INPUTS[1:6], -2))
_TEXTS = ("test.wsj/words/test.wsj.words.gz", "test.wsj/props/test.wsj.props.gz")
_MAX_TEXT_BYTES = 8 << 20
_MAX_DICTIONARY_BYTES = 4 << 20
# 5,267 as published; each takes four kilobytes when it is padded.
_MAX_VERBS = 20_000


@registry.register_dataset("conll05", splits=["test"])
def load_conll05(request: registry.DatasetRequest) -> Arrays:
    """Load the public test part of CoNLL 2005, a sample for each verb of a sentence.

    The nine inputs of Fluid's role labelling, each [100] int32 padded with 0, with length:
    word_data; ctx_n2_data to ctx_p2_data, the words around the verb, repeated; verb_data, the
    verb, repeated; mark_data, 1 around the verb; target, the labels. Labels are numbered in the
    order of the dictionary file, B before I, O last.
    """
    how = f"Get {_HOST}/conll05st/conll05st-tests.tar.gz and, from {_HOST}/, conll05st%2F<name>"
    path = registry.find_members(request, ["conll05st-tests.tar.gz", "conll05st-release"], how)
    words, verbs, labels = _read_dictionaries(request, how)
    size = get_max_length(request, 100)
    columns = {name: Sequences(size) for name in _INPUTS}
    files = read_by_name(path, _TEXTS, registry.text_limits(4, 64))
    texts = [gunzip(files[name], _MAX_TEXT_BYTES) for name in _TEXTS]
    for number, (sentence, verb, tags, line) in enumerate(_read_propositions(*texts)):
        where, props = f"before line {line}", texts[1]
        if number == _MAX_VERBS:
            got = f"more than {number} verbs {where}"
            raise props.error(got, f"at most {number}", "It has 5,267")
        if verb not in verbs:
            got = f"the verb {verb!r} {where}"
            raise props.error(got, "one of verbDict.txt", "It has no id")
        if unknown := sorted(set(tags) - set(labels)):
            got = f"the labels {unknown[:3]} {where}"
            raise props.error(got, "those of targetDict.txt", "They have no id")
        # Words beyond `size` are not copied: a sentence comes once for each of its verbs.
        length, at = min(len(sentence), size), tags.index("B-V")
        for offset, name in _AROUND.items():
            is_inside = 0 <= at + offset < len(sentence)
            # Fluid's words for what lies before and behind a sentence.
            word = sentence[at + offset] if is_inside else "bos" if offset < 0 else "eos"
            columns[name].append([words.get(word, 0)] * length)
        columns["word_data"].append([words.get(word, 0) for word in sentence[:length]])
        columns["verb_data"].append([verbs[verb]] * length)
        columns["mark_data"].append([int(abs(i - at) <= 2) for i in range(length)])
        columns["target"].append([labels[tag] for tag in tags[:length]])
    if not len(columns["target"]):
        got, why = "no verb", "Each verb of a sentence is a sample"
        raise FileContent(path=path, name="test.wsj").error(got, "a sentence with one", why)
    arrays = {name: sequences.pad() for name, sequences in columns.items()}
    return {**{name: ids for name, (ids, _) in arrays.items()}, "length": arrays["target"][1]}


def _read_dictionaries(request: registry.DatasetRequest, how: str) -> tuple[dict[str, int], ...]:
    paths = [request.folder / name for name in ("wordDict.txt", "verbDict.txt", "targetDict.txt")]
    if absent := [path.name for path in paths if not path.is_file()]:
        raise registry.missing(request, absent, how)
    words, verbs, tags = (number_lines(read_file(path, _MAX_DICTIONARY_BYTES)) for path in paths)
    kinds = dict.fromkeys(tag[2:] for tag in tags if tag.startswith(("B-", "I-")))
    labels = [f"{side}-{kind}" for kind in kinds for side in "BI"]
    return words, verbs, {label: number for number, label in enumerate([*labels, "O"])}


def _read_propositions(
    words: FileContent, props: FileContent
) -> Iterator[tuple[list[str], str, list[str], int]]:
    """Yield sentence, verb, tags and line for each verb of a sentence, which ends at that line."""
    sentence: list[str] = []
    marks: list[list[str]] = []
    lines = chain(zip_longest(words.lines(), props.lines(), fillvalue=""), [("", "")])
    for number, (word, line) in enumerate(lines, 1):
        if bool(word.strip()) != bool(line.strip()):
            got = f"another sentence at line {number} than words.gz"
            raise props.error(got, "a line for each word", "The two files go together")
        fields = line.split()
        if fields and len(fields) == len(marks[0] if marks else fields):
            sentence.append(word.strip())
            marks.append(fields)
            continue
        if fields:
            got = f"{len(fields)} columns in line {number}"
            raise props.error(got, f"{len(marks[0])}", "The line before has them")
        by_verb = [list(column) for column in zip(*marks, strict=True)]
        verbs = [verb for verb in (by_verb[0] if by_verb else []) if verb != "-"]
        if len(verbs) != len(by_verb[1:]):
            got = f"{len(verbs)} verbs and {len(by_verb[1:])} columns before line {number}"
            raise props.error(got, "a column for each verb", "It brackets the verb's roles")
        for verb, spans in zip(verbs, by_verb[1:], strict=True):
            try:
                tags = convert_to_bio(spans)
            except ValueError as error:
                got = f"{error} before line {number}"
                raise props.error(
                    got, "'*' with brackets around it, one (V*)", "They are roles"
                ) from error
            yield sentence, verb, tags, number
        sentence, marks = [], []


def convert_to_bio(spans: list[str]) -> list[str]:
    """Return B, I and O tags of a column of bracketed spans, one of them the verb's.

    >>> convert_to_bio(["(A0*", "*)", "(V*)", "*"])
    ['B-A0', 'I-A0', 'B-V', 'O']
    """
    tags, kind = [], ""
    for mark in spans:
        if "*" not in mark:
            raise ValueError(f"the mark {mark!r}")
        if mark.startswith("("):
            kind = mark[1 : mark.index("*")]
            tags.append(f"B-{kind}")
        else:
            tags.append(f"I-{kind}" if kind else "O")
        if mark.endswith(")"):
            kind = ""
    if "B-V" not in tags:
        raise ValueError("no mark (V*)")
    return tags

"""`pack`: several short sequences in one row, told apart by segment ids."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from penstock.readers._contract import ReaderBase, ReaderLike, State, check_state
from penstock.readers._errors import ReaderStateError, check_int, note
from penstock.readers._foreign import of
from penstock.readers.decorators._by_length import count_words, get_field
from penstock.readers.decorators._fluid import DecoratedIterator, DecoratedReader, origin

# The position of the source is asked for once in so many samples: some readers of others take as
# long to tell it as to read a sample.
_SAMPLES_A_MARK = 32

Piece: TypeAlias = "list[np.ndarray]"
"""What stands in one segment of a row, `[length, ...]` for each field."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What decides which samples share a row, beside the samples; a state must agree with it."""

    fields: tuple[str, ...]
    lengths: tuple[int, ...]
    open_rows: int
    splits_long: bool

    def save(self) -> State:
        return {**vars(self), "fields": list(self.fields), "lengths": list(self.lengths)}


class _Row:
    """A row that is being filled: its room in words, by field; sample and piece of each segment."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.room = list(lengths)
        self.numbers: list[tuple[int, int]] = []
        self.pieces: list[Piece] = []

    def add(self, number: tuple[int, int], piece: Piece) -> None:
        self.numbers.append(number)
        self.pieces.append(piece)
        for place, values in enumerate(piece):
            self.room[place] -= len(values)


class _PackIterator(DecoratedIterator[Any, dict[str, np.ndarray]]):
    kind = "pack"

    def __init__(self, source: ReaderBase[Any], epoch: int, plan: _Plan) -> None:
        super().__init__([source], epoch)
        self._plan = plan
        self._num_read = 0
        self._is_over = False
        # Open rows in the order they were opened, and rows that wait to be returned.
        self._open: list[_Row] = []
        self._ready: deque[_Row] = deque()
        # Numbers of samples, and where the source stood before each.
        self._marks: deque[tuple[int, State]] = deque()

    def __next__(self) -> dict[str, np.ndarray]:
        while not (self._ready or self._is_over or self._closed):
            if self._num_read % _SAMPLES_A_MARK == 0:
                self._mark()
            for sample in self.inner[0]:
                for piece in self._cut(sample):
                    self._place(*piece)
                break
            else:
                self._is_over = True
                self._ready.extend(self._open)
                self._open = []
        if self._closed or not self._ready:
            raise StopIteration
        return _build(self._ready.popleft(), self._plan)

    def _cut(self, sample: Any) -> list[tuple[tuple[int, int], Piece]]:
        """Return the pieces of the sample that was just read, each with its number."""
        number, self._num_read = self._num_read, self._num_read + 1
        try:
            pieces = _cut(sample, number, self._plan)
        except Exception as error:
            note(error, origin("pack", number, self.epoch))
            raise
        return [((number, index), piece) for index, piece in enumerate(pieces)]

    def _place(self, number: tuple[int, int], piece: Piece) -> None:
        """Put a piece into the first open row that has room, or into a new one."""
        rows = self._open
        sizes = [len(values) for values in piece]
        for row in rows:
            if all(map(operator.le, sizes, row.room)):
                break
        else:
            if len(rows) == self._plan.open_rows:
                self._ready.append(rows.pop(0))
            row = _Row(self._plan.lengths)
            rows.append(row)
        row.add(number, piece)
        # A full row makes room for another open one.
        if not min(row.room):
            rows.remove(row)
            self._ready.append(row)

    def _mark(self) -> None:
        """Note where the source stands, and forget what no row needs any more."""
        self._marks.append((self._num_read, self.inner[0].get_state()))
        oldest = self._find_oldest()
        while len(self._marks) > 1 and self._marks[1][0] <= oldest:
            self._marks.popleft()

    def _find_oldest(self) -> int:
        firsts = [row.numbers[0][0] for row in (*self._open, *self._ready)]
        return min(firsts, default=self._num_read)

    def _save(self) -> State:
        oldest = self._find_oldest()
        first, source = self._num_read, None
        # Without rows to make again the source goes on where it stands.
        if self._open or self._ready:
            first, source = [mark for mark in self._marks if mark[0] <= oldest][-1]
        return {
            "plan": self._plan.save(),
            "source": self.inner[0].get_state() if source is None else source,
            "first": first,
            "num_read": self._num_read,
            "open": [list(map(list, row.numbers)) for row in self._open],
            "ready": [list(map(list, row.numbers)) for row in self._ready],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        check_state(self.kind, state.get("plan"), self._plan.save(), "Others make other rows")
        self.inner[0].set_state(state["source"])
        self._num_read, self._is_over = state["first"], False
        self._marks = deque([(state["first"], state["source"])])
        lengths = self._plan.lengths
        self._open = [_Row(lengths) for _ in state["open"]]
        self._ready = deque(_Row(lengths) for _ in state["ready"])
        rows = zip((*self._open, *self._ready), (*state["open"], *state["ready"]), strict=True)
        row_of = {tuple(number): row for row, numbers in rows for number in numbers}
        # The samples of the rows are read again; those between, of returned rows, are dropped.
        while self._num_read < state["num_read"]:
            for sample in self.inner[0]:
                for number, piece in self._cut(sample):
                    if number in row_of:
                        row_of[number].add(number, piece)
                break
            else:
                raise ReaderStateError(
                    f"pack.set_state() got a source of {self._num_read} samples, expected at least "
                    f"the {state['num_read']} that were read. The source is shorter than in the "
                    "run that was saved. Give the reader the data of the run that was saved."
                )


def _cut(sample: Any, number: int, plan: _Plan) -> list[Piece]:
    """Return a sample in pieces that fit a row: one, or none of an empty sample."""
    is_bare = len(plan.fields) == 1 and not isinstance(sample, (Mapping, tuple))
    counts: list[int] = []
    values: list[np.ndarray] = []
    for name in plan.fields:
        value = sample if is_bare else get_field("pack", sample, name)
        counts.append(count_words("pack", f"sample {number}: field {name!r}", value))
        values.append(np.asarray(value))
    if not any(counts):
        return []
    too_long = [place for place, count in enumerate(counts) if count > plan.lengths[place]]
    if not too_long:
        return [values]
    if plan.splits_long and len(set(counts)) == 1:
        size = plan.lengths[0]
        return [[each[at : at + size] for each in values] for at in range(0, counts[0], size)]
    place = too_long[0]
    why, remedy = "A row holds whole sequences", "Raise length, or pass splits_long=True"
    if plan.splits_long:
        why = f"Only fields of one length are cut side by side, and here they are {counts}"
        remedy = "Raise length, or cut the sample before"
    raise ValueError(
        f"pack got sample {number} with {plan.fields[place]!r} of length {counts[place]}, expected "
        f"at most {plan.lengths[place]}. {why}. {remedy}."
    )


def _build(row: _Row, plan: _Plan) -> dict[str, np.ndarray]:
    """Return a row as arrays: for each field its values, segment ids and positions."""
    built: dict[str, np.ndarray] = {}
    for place, (name, length) in enumerate(zip(plan.fields, plan.lengths, strict=True)):
        pieces = [piece[place] for piece in row.pieces]
        # An empty list is of floats to numpy: it says nothing of the dtype.
        filled = [piece for piece in pieces if len(piece)] or pieces[:1]
        if len({(piece.dtype, piece.shape[1:]) for piece in filled}) > 1:
            raise _say_unlike(row, place, name)
        counts = np.asarray([len(piece) for piece in pieces])
        used = int(counts.sum())
        values = np.zeros((length, *filled[0].shape[1:]), filled[0].dtype)
        values[:used] = np.concatenate(filled)
        segment_ids, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
        segment_ids[:used] = np.repeat(np.arange(1, len(counts) + 1), counts)
        positions[:used] = np.arange(used) - np.repeat(np.cumsum(counts) - counts, counts)
        built |= {name: values, f"{name}_segment_ids": segment_ids, f"{name}_positions": positions}
    return built


def _say_unlike(row: _Row, place: int, name: str) -> ValueError:
    kinds: dict[str, int] = {}
    for (number, _), piece in zip(row.numbers, row.pieces, strict=True):
        if len(piece[place]):
            kinds.setdefault(f"{list(piece[place].shape[1:])} {piece[place].dtype}", number)
    places = ", ".join(f"{kind} in sample {number}" for kind, number in kinds.items())
    return ValueError(
        f"pack got words of {name!r} of {places}, expected one shape and dtype. They share a row. "
        "Convert them with map_readers before."
    )


def pack(
    reader: ReaderLike[Any],
    *,
    field: str | Sequence[str],
    length: int | Mapping[str, int],
    open_rows: int = 16,
    splits_long: bool = False,
) -> DecoratedReader[dict[str, np.ndarray]]:
    """Pack several sequences into each row of a fixed length, with almost no padding.

    First fit: each sample goes into the first open row with room for it. If there is none, a new
    row is opened. Full rows are yielded; so is the oldest once more than `open_rows` are open. All
    fields of a sample have the same segment id. Empty samples are dropped, and so are entries that
    `field` does not name.

    Attention must stay within a segment: pass it the segment ids. Recurrent layers ignore segments,
    so do not pack for them. Restoring a position rereads the samples of the open rows. Every
    process packs the same rows, and `batch` divides them.

    Args:
      reader: a reader of samples: dicts, or bare sequences if there is only one field.
      field: the keys of the sequences in a sample, `[length, ...]` each.
      length: words per row, one number for all fields or a dict by field.
      open_rows: number of rows filled at the same time. More rows pad less.
      splits_long: split a sample that is longer than a row into pieces, each its own segment; its
        fields must then have the same length.

    Returns:
      A reader of rows: `<field>` `[length, ...]`, 0 in the padding; `<field>_segment_ids`
      `[length]`, int32, from 1, and 0 in the padding; `<field>_positions` `[length]`, int32, from
      0 within each segment.

    Raises:
      ValueError: an option out of range; while reading, a sample that is longer than a row.

    >>> for row in pack([[5, 6, 7], [8, 8], [9]], field="words", length=4):
    ...     print(*(row[name].tolist() for name in row))
    [5, 6, 7, 9] [1, 1, 1, 2] [0, 1, 2, 0]
    [8, 8, 0, 0] [1, 1, 0, 0] [0, 1, 0, 0]
    """
    fields = (field,) if isinstance(field, str) else tuple(field)
    lengths = length if isinstance(length, Mapping) else dict.fromkeys(fields, length)
    if not fields or len(set(fields)) < len(fields) or set(lengths) != set(fields):
        raise ValueError(
            f"pack got field={field!r} and length={length!r}, expected a name or more, each once, "
            "and one length or a length of each. Name the sequences of a sample."
        )
    for name in fields:
        check_int(f"pack(length) of {name!r}", lengths[name], 1, "It counts the words of a row")
    check_int("pack(open_rows)", open_rows, 1, "It counts the rows that are filled at once")
    if splits_long and len(set(lengths.values())) > 1:
        raise ValueError(
            f"pack(splits_long=True) got length={length!r}, expected one length of all fields. "
            "Fields are cut side by side. Pass one length, or cut long samples before."
        )
    plan = _Plan(
        fields=fields,
        lengths=tuple(lengths[name] for name in fields),
        open_rows=open_rows,
        splits_long=splits_long,
    )
    source = of(reader)
    return DecoratedReader(
        "pack", lambda epoch: _PackIterator(source, epoch, plan), [source], lambda: None
    )

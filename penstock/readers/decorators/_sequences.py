"""Decorators for sequences: batches of about one length, and several short ones in one row."""

from __future__ import annotations

import bisect
import operator
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from penstock._errors import check_int, listed
from penstock._json_values import encode_json
from penstock.readers._contract import (
    Item,
    ReaderBase,
    ReaderLike,
    State,
    check_state,
    refuse_short,
)
from penstock.readers._errors import ShardError, note
from penstock.readers._foreign import ForeignReader, of
from penstock.readers.decorators._fluid import (
    DecoratedIterator,
    DecoratedReader,
    PoolIterator,
    count_batches,
    origin,
    take_part,
)
from penstock.readers.sharding import BatchSize, Shard, find_own_shard, resolve_batch_size

Field = str | int
"""A key of samples that are dicts, or a place in those that are tuples."""


def choose_measure(
    caller: str,
    field: Field | Sequence[Field] | None,
    length: Callable[[Any], int] | None,
) -> Callable[[Any], int]:
    """Return the function that tells how long a sample is: its longest field, or it itself."""
    if length is not None:
        if field is not None:
            raise ValueError(
                f"{caller} got field={field!r} and length=, expected one of them. Leave one out."
            )

        def measure(sample: Any) -> int:
            # An array of one number, as records hold them, is a length too.
            number = np.asarray(length(sample)).tolist()
            check_int(f"{caller}(length=) of a sample", number, 0)
            return number

        return measure
    if field is None:
        return lambda sample: count_words(caller, "a sample", sample)
    fields = (field,) if isinstance(field, (str, int)) else tuple(field)
    if not fields:
        raise ValueError(
            f"{caller}(field) got {field!r}, expected a name or more. A sample is as long as its "
            "longest field. Name the fields that are sequences."
        )
    return lambda sample: max(
        count_words(caller, f"field {name!r}", get_field(caller, sample, name)) for name in fields
    )


def get_field(caller: str, sample: Any, field: Field) -> Any:
    """Return a field of a sample."""
    if isinstance(field, str):
        names = list(sample) if isinstance(sample, Mapping) else []
        if field in names:
            return sample[field]
        got = f"a dict of {listed(names)}" if names else f"a {type(sample).__name__}"
    else:
        is_row = isinstance(sample, (tuple, list))
        if is_row and 0 <= field < len(sample):
            return sample[field]
        got = f"a {type(sample).__name__}{f' of {len(sample)} fields' if is_row else ''}"
    raise ValueError(
        f"{caller} got {got}, expected a sample with the field {field!r}. Dicts have names, tuples "
        "places; lists of samples are batches. Name a field, and pass a reader of samples."
    )


def count_words(caller: str, thing: str, value: Any) -> int:
    """Return the length of a sequence."""
    # Strings and dicts have a length too, but it does not count words.
    if not isinstance(value, (str, bytes, Mapping)):
        try:
            return len(value)
        except TypeError:
            pass
    raise ValueError(
        f"{caller} got {thing} of type {type(value).__name__}, expected an array or a list of "
        "words, [length, ...]. Name the field of the samples that is a sequence, or pass length=."
    )


@dataclass(frozen=True, kw_only=True)
class LengthPlan:
    """What decides which samples make a batch, beside the samples; a state must agree with it.

    The arguments are those of `batch_by_length`.
    """

    batch_size: int | None = None
    words_per_batch: int | None = None
    batch_multiple_of: int = 1
    boundaries: tuple[int, ...] = ()
    pool_batches: int = 100
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_int("batch_multiple_of", self.batch_multiple_of, 1, "It counts samples.")
        check_int("pool_batches", self.pool_batches, 1, "A pool is cut into batches.")
        check_int("batch_by_length(seed)", self.seed, 0, "It seeds a numpy generator.")
        self._check_boundaries()
        words, size, multiple = self.words_per_batch, self.batch_size, self.batch_multiple_of
        if words is None and (size is None or multiple > 1):
            raise ValueError(
                f"batch_by_length got batch_size={size}, words_per_batch=None, "
                f"batch_multiple_of={multiple}, expected batch_size, or words_per_batch with the "
                "multiple. Pass batch_size=64, words_per_batch=4096, or both."
            )
        if words is None:
            return
        if size is not None:
            why = "It is batch_multiple_of. Raise one or lower the other."
            check_int("batch_size", size, multiple, why)
        longest = self.boundaries[-1] if self.boundaries else 1
        why = f"It holds {multiple} samples padded to {longest}, and no fewer."
        remedy = "Raise it, or lower batch_multiple_of or the last boundary."
        check_int("words_per_batch", words, multiple * longest, f"{why} {remedy}")

    def _check_boundaries(self) -> None:
        lengths = self.boundaries
        if all(
            isinstance(b, (int, np.integer)) and b > a
            for a, b in zip((0, *lengths), lengths, strict=False)
        ):
            # Plain ints, which JSON holds.
            object.__setattr__(self, "boundaries", tuple(map(int, lengths)))
            return
        raise ValueError(
            f"batch_by_length(boundaries) got {list(lengths)}, expected rising positive lengths "
            "such as [16, 32, 64]. Pass the buckets of layers.data, or leave them out."
        )

    def check_division(self, shard: Shard | None) -> None:
        """Check that batches of a budget divide equally over the processes."""
        if self.words_per_batch is not None and shard is not None:
            shard.check_division("batch_multiple_of", self.batch_multiple_of)

    def is_full(self, num_samples: int, num_words: int) -> bool:
        size, words = self.batch_size, self.words_per_batch
        return (size is not None and num_samples >= self.pool_batches * size) or (
            words is not None and num_words >= self.pool_batches * words
        )

    def find_padded_length(self, length: int, number: int) -> int:
        """Return the length that a sample is padded to where it is the longest of its batch."""
        if not self.boundaries:
            # An empty sequence takes a place too.
            padded = max(length, 1)
        elif length <= self.boundaries[-1]:
            return self.boundaries[bisect.bisect_left(self.boundaries, length)]
        else:
            why, remedy = "Nothing is cut off in silence", "Add a longer boundary"
            raise _too_long(
                length, number, f"{self.boundaries[-1]}, the last boundary", why, remedy
            )
        if not self.find_batch_size(padded):
            longest = (self.words_per_batch or 0) // self.batch_multiple_of
            why = (
                f"A batch has {self.batch_multiple_of} samples or more, and "
                f"{self.words_per_batch} words at most"
            )
            raise _too_long(length, number, str(longest), why, "Raise words_per_batch")
        return padded

    def find_batch_size(self, padded: int) -> int:
        """Return how many samples make a batch that is padded to a length."""
        if self.words_per_batch is None:
            return self.batch_size or 0
        fits = self.words_per_batch // padded
        if self.batch_size is not None:
            fits = min(fits, self.batch_size)
        return fits - fits % self.batch_multiple_of

    def cut(self, padded: np.ndarray, key: Sequence[int]) -> list[np.ndarray]:
        """Return the batches of a pool, each as the places of its samples in the pool.

        `padded` is `[N]`, the length that each sample would be padded to; `key` decides the order.
        """
        # The bit generator is named: numpy may give `default_rng` another one in a release.
        generator = np.random.Generator(np.random.PCG64([self.seed, *key]))
        order = np.arange(len(padded))
        # Before sorting: samples of one length meet others in every epoch.
        order = generator.permutation(order) if self.shuffle else order
        order = order[np.argsort(-padded[order], kind="stable")]
        batches, start = [], 0
        # From the longest down: the first sample of a batch says how many it has.
        while start < len(order):
            size = self.find_batch_size(int(padded[order[start]]))
            batches.append(order[start : start + size])
            start += size
        # It stays the last: processes that train together learn the batch size from the first.
        short = [batches.pop()] if start > len(order) else []
        if self.shuffle:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches if self.drop_last else batches + short

    def save(self) -> State:
        return encode_json(vars(self))


def _too_long(length: int, number: int, longest: str, why: str, remedy: str) -> ValueError:
    return ValueError(
        f"batch_by_length got sample {number} of length {length}, expected at most {longest}. "
        f"{why}. {remedy}, or cut or leave out long samples before."
    )


class _ByLengthIterator(PoolIterator[Item, list[Item]]):
    kind = "batch_by_length"

    def __init__(
        self,
        source: ReaderBase[Item],
        epoch: int,
        plan: LengthPlan,
        measure: Callable[[Item], int],
        shard: Shard | None,
    ) -> None:
        super().__init__(source, epoch)
        self._plan, self._measure, self._shard = plan, measure, shard
        self._padded: list[int] = []

    def _read(self) -> list[Item]:
        samples, self._padded, num_words = [], [], 0
        for sample in self.inner[0]:
            samples.append(sample)
            try:
                length = self._plan.find_padded_length(self._measure(sample), self._num_read)
            except Exception as error:
                note(error, origin("batch_by_length", self._num_read, self.epoch))
                raise
            self._padded.append(length)
            self._num_read += 1
            num_words += self._padded[-1]
            if self._plan.is_full(len(samples), num_words):
                break
        return samples

    def _cut(self, samples: list[Item]) -> list[list[Item]]:
        batches = self._plan.cut(np.asarray(self._padded), [self.epoch, self._pool])
        return [take_part([samples[i] for i in batch], self._shard) for batch in batches]

    def _save(self) -> State:
        return {"plan": self._plan.save(), **super()._save()}

    def _load(self, state: Mapping[str, Any]) -> None:
        check_state(self.kind, state.get("plan"), self._plan.save(), "Others make other batches")
        super()._load(state)


def batch_by_length(
    reader: ReaderLike[Item],
    *,
    field: Field | Sequence[Field] | None = None,
    length: Callable[[Item], int] | None = None,
    batch_size: BatchSize | None = None,
    words_per_batch: int | None = None,
    batch_multiple_of: int = 1,
    boundaries: Sequence[int] = (),
    pool_batches: int = 100,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    shard: Shard | None = None,
) -> DecoratedReader[list[Item]]:
    """Collect samples of similar length into lists, to keep padding small.

    Sorts a pool of samples by length, cuts it into batches, and yields these in an order drawn from
    `(seed, epoch, pool)`. Batches are lists, divided over processes as those of `batch`. Only the
    last batch of a pool may be short; it has the shortest samples. Restoring rereads one pool.
    Follows torchtext's `BucketIterator`, with fairseq's `--max-tokens` as the budget.

    Args:
      reader: a reader of samples.
      field: the key or index of the sequence in a sample; of several, the longest counts. By
        default the sample itself is the sequence.
      length: instead of `field`, a function of a sample that returns its length.
      batch_size: samples per list, over all processes, or `PerDevice(...)`.
      words_per_batch: the word budget: an upper bound on the number of samples times their padded
        length. With both, the smaller batch counts.
      batch_multiple_of: with a word budget, round the number of samples down to a multiple of
        this, e.g. of the number of devices.
      boundaries: the buckets of `layers.data`; lengths are then rounded up to them.
      pool_batches: batches per pool. A larger pool pads less, and takes more memory.
      shuffle: shuffle samples and batches; otherwise each pool runs from longest to shortest.
      seed: seeds the shuffling.
      drop_last: drop short batches: at most one per epoch, or one per pool with a word budget.
      shard: this process's part of each batch; `Shard()` is all. Foreign samples need it.

    Raises:
      ValueError: an option out of range, or a sample longer than the last boundary or the budget.
      ShardError: batches cannot be divided equally over the processes, or nothing says how.

    >>> samples = [[1, 1, 1], [2], [3, 3, 3, 3], [4, 4], [5]]
    >>> list(batch_by_length(samples, batch_size=2, shuffle=False))
    [[[3, 3, 3, 3], [1, 1, 1]], [[4, 4], [2]], [[5]]]
    """
    shard = _find_shard(source := of(reader), shard)
    plan = LengthPlan(
        batch_size=None if batch_size is None else resolve_batch_size(batch_size, shard),
        words_per_batch=words_per_batch,
        batch_multiple_of=batch_multiple_of,
        boundaries=tuple(boundaries),
        pool_batches=pool_batches,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )
    plan.check_division(shard)
    measure = choose_measure("batch_by_length", field, length)

    def count() -> int | None:
        # A budget makes as many batches as the lengths say, and they have not been read.
        if plan.batch_size is None or plan.words_per_batch is not None:
            return None
        return count_batches(source, plan.batch_size, plan.drop_last)

    batches = DecoratedReader(
        "batch_by_length",
        lambda epoch: _ByLengthIterator(source, epoch, plan, measure, shard),
        [source],
        count,
    )
    batches.is_common = False
    return batches


def _find_shard(source: ReaderBase[Item], shard: Shard | None) -> Shard | None:
    """Return the part of each batch that this process keeps, as `batch` does."""
    own = find_own_shard() if shard is None else Shard()
    if own.count > 1 and _is_of_others(source):
        raise ShardError(
            f"batch_by_length got samples of {source!r} without shard, expected shard, on "
            f"{own.count} processes. Of a reader that is not penstock's it cannot know whether "
            "each process reads all samples, which would train on every one several times. Pass "
            f"shard={own!r} where each process reads all samples, shard=Shard() where each reads a "
            "part of its own."
        )
    return own if own.count > 1 and source.is_common else shard


def _is_of_others(source: object) -> bool:
    if isinstance(source, DecoratedReader):
        return any(map(_is_of_others, source.sources))
    return isinstance(source, ForeignReader)


def learn_buckets(
    reader: ReaderLike[Any],
    *,
    field: Field | Sequence[Field] | None = None,
    length: Callable[[Any], int] | None = None,
    max_buckets: int = 8,
    multiple_of: int = 8,
) -> list[int]:
    """Return the lengths that sequences are best padded to, for `layers.data(..., buckets=)`.

    Reads one pass, epoch 0. Each sample will be padded to the smallest bucket that holds it. The
    result minimises the total number of padded words over all choices of at most `max_buckets`
    multiples of `multiple_of`. It is exact: dynamic programming over the `D` distinct rounded
    lengths, in O(max_buckets D^2) time and O(max_buckets D) memory.

    The last bucket is the longest length of the pass, rounded up. Nothing longer may be fed later:
    if there is a test set, pass `chain(train, test)`. A subset such as `firstn(reader, 10000)` is
    enough if it contains the longest sample. All processes must use the same buckets: let each of
    them read the same samples.

    Args:
      reader: a reader of samples, or of lengths: an array `[N]` or any iterable of ints.
      field: the key or index of the sequence in a sample; of several, the longest counts. By
        default the sample is the sequence itself, or its length.
      length: instead of `field`, a function of a sample that returns its length.
      max_buckets: an upper bound on the number of buckets. Each is one compiled program.
      multiple_of: buckets are multiples of this.

    Returns:
      At most `max_buckets` lengths in ascending order.

    Raises:
      ValueError: there are no samples, an option is below 1, or a sample has no such field.

    >>> learn_buckets([3, 4, 5, 5, 30, 31], max_buckets=2)
    [8, 32]
    >>> learn_buckets([{"words": [1] * n} for n in (1, 2, 3, 9)], field="words", multiple_of=1)
    [1, 2, 3, 9]
    """
    check_int("max_buckets", max_buckets, 1, "Each is a length to pad to.")
    check_int("multiple_of", multiple_of, 1, "Lengths are rounded up to it.")
    measure = choose_measure("learn_buckets", field, length)
    is_plain = field is None and length is None
    counts: Counter[int] = Counter()
    # Not by `iter`: the reader's next pass stays the one it was.
    with of(reader).iterate(0) as samples:
        for number, sample in enumerate(samples):
            try:
                is_length = is_plain and isinstance(sample, (int, np.integer))
                words = int(sample) if is_length else measure(sample)
                check_int("learn_buckets: a length", words, 0, "It counts words.")
            except Exception as error:
                note(error, f"in learn_buckets, sample {number} of epoch 0")
                raise
            # An empty sequence is padded to the least length, which is not 0.
            counts[-(-max(words, 1) // multiple_of) * multiple_of] += 1
    if not counts:
        raise ValueError(
            "learn_buckets got no sample, expected a sample or more. Pass a reader that has some."
        )
    boundaries = sorted(counts)
    return choose_buckets(boundaries, [counts[boundary] for boundary in boundaries], max_buckets)


def choose_buckets(
    lengths: Sequence[int], num_samples: Sequence[int], max_buckets: int
) -> list[int]:
    """Return which of the lengths `[D]`, rising, to pad to, so that samples have the fewest words.

    >>> choose_buckets([1, 2, 10], [5, 5, 1], 2)
    [2, 10]
    """
    ends = np.asarray(lengths, np.int64)
    before = np.concatenate([[0], np.cumsum(np.asarray(num_samples, np.int64))])
    size = len(ends)
    # With one bucket, the first `j + 1` lengths are padded to length `j`.
    words = ends * before[1:]
    chosen_from = []
    for _ in range(1, min(max_buckets, size)):
        previous, words = words, words.copy()
        starts = np.full(size, -1)
        for j in range(1, size):
            # The bucket before this one ends with length i, for every i < j.
            totals = previous[:j] + ends[j] * (before[j + 1] - before[1 : j + 1])
            i = int(totals.argmin())
            if totals[i] < words[j]:
                words[j], starts[j] = totals[i], i
        chosen_from.append(starts)
    buckets, j = [int(ends[-1])], size - 1
    for starts in reversed(chosen_from):
        # -1: one more bucket pads no less.
        if starts[j] >= 0:
            j = int(starts[j])
            buckets.append(int(ends[j]))
    return buckets[::-1]


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
        return encode_json(vars(self))


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
                raise refuse_short("pack.set_state()", self._num_read, state["num_read"])


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
        return [[array[at : at + size] for array in values] for at in range(0, counts[0], size)]
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
        check_int(f"pack(length) of {name!r}", lengths[name], 1, "It counts the words of a row.")
    check_int("pack(open_rows)", open_rows, 1, "It counts the rows that are filled at once.")
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

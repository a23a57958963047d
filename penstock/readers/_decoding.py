"""What the workers of a random-access reader do: read, decode, and say which record failed."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.readers._batching import BatchRows, BufferPool
from penstock.readers._errors import note
from penstock.readers._order import RecordOrder

Decode = Callable[[Any], Any]
Augment = Callable[[Any, np.random.Generator], Any]


class Rows(Protocol):
    """Records by number, read from several threads: of files, or of a user's source.

    `damages` are what is known to be missing before anything is read, `mean_record_bytes` decides
    how many records make a task.
    """

    @property
    def damages(self) -> Sequence[Exception]:
        """Return the errors of what cannot be reached at all."""
        ...

    @property
    def mean_record_bytes(self) -> int:
        """Return the mean size of a record, at least 1."""
        ...

    def read(self, records: Sequence[int]) -> Iterator[Any]:
        """Yield the payload of each record, or an exception in its place."""
        ...

    def blame(self, error: Exception, record: int) -> Exception:
        """Return the error with the origin of the record."""
        ...

    def is_damage(self, error: Exception) -> bool:
        """Say whether an error is the data's fault, and may be skipped."""
        ...

    def reopened(self) -> "Rows":
        """Return a copy of which the open files are its own."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class Decoder(Protocol):
    """What turns a payload into a sample; picklable, so that readers travel to processes.

    `kind` names the reader in states, `is_random` asks for a generator, and `pad_values` are the
    entries of a sample whose length differs, with what a batch pads them with.
    """

    @property
    def kind(self) -> str:
        """Return the reader's name."""
        ...

    @property
    def is_random(self) -> bool:
        """Return whether decoding draws random numbers."""
        ...

    @property
    def pad_values(self) -> Mapping[str, Any]:
        """Return padding by entry."""
        ...

    def __call__(self, payload: Any, random: np.random.Generator | None) -> Any:
        """Return the sample; an error that `Rows.is_damage` knows says that it is no such."""
        ...


class Piece(NamedTuple):
    """Records one worker decodes, and the position after each: `None` inside a batch.

    `rows` is the memory of their batch, in which they begin at `first_row`.
    """

    records: list[int]
    ends: list[int | None]
    rows: BatchRows | None = None
    first_row: int = 0
    is_abroad: bool = False

    def for_process(self) -> "Piece":
        """Return what travels to another process: no memory of this one."""
        return self._replace(rows=None, is_abroad=True)


class Outcome(NamedTuple):
    """A sample or what took its place, and the position after it: `None` inside a batch.

    Without a record it only marks the end of a batch that has none here.
    """

    record: int | None
    sample: Any
    error: Exception | None
    end: int | None
    rows: BatchRows | None = None


def pieces(
    order: RecordOrder, epoch: int, position: int, size: int, pool: BufferPool
) -> Iterator[Piece]:
    """Yield an epoch's records from `position` on in pieces of at most `size`.

    The memory of batches comes from `pool`. A piece never spans two batches; without a batch size
    it spans several samples.
    """
    rows = order.epoch(epoch)
    single = Piece([], [])
    for start in range(position, rows.total, rows.step):
        chosen = rows.rows(start)
        end = min(start + rows.step, rows.total)
        records = (
            list(range(chosen.start, chosen.stop))
            if isinstance(chosen, slice)
            else [int(record) for record in chosen]
        )
        if order.batch_size is None:
            single.records.extend(records)
            single.ends.extend([end] * len(records))
            if single.records and (len(single.records) >= size or end == rows.total):
                yield single
                single = Piece([], [])
            continue
        memory = BatchRows(len(records), pool)
        for at in range(0, max(1, len(records)), size):
            piece = records[at : at + size]
            ends: list[int | None] = [None] * max(1, len(piece))
            if at + size >= len(records):
                ends[-1] = end
            yield Piece(piece, ends, memory, at)


class PieceDecoder:
    """Decode pieces of one epoch. It holds no iterator, so a dropped iterator is freed at once.

    Args:
      rows: where the records are.
      decoder: payload to sample.
      decode: the user's function of a sample.
      augment: the user's function of a sample and a generator, applied last.
      key: seed and epoch; record `i` draws from `(seed, epoch, i)`, so what it draws depends on
        nothing else: not on the threads, the batch or where a run was resumed.
      cache: payloads kept in memory by record, `None` to keep none.
    """

    def __init__(
        self,
        *,
        rows: Rows,
        decoder: Decoder,
        decode: Decode | None,
        augment: Augment | None,
        key: tuple[int, int],
        cache: dict[int, bytes] | None,
    ) -> None:
        """Take the parts."""
        self._rows, self._decoder, self._key, self._cache = rows, decoder, key, cache
        self._decode, self._augment = decode, augment
        self._is_random = decoder.is_random or augment is not None

    def __call__(self, piece: Piece) -> list[Outcome]:
        """Return an outcome a record, in order; a piece without records gives one empty outcome."""
        if not piece.records:
            return [Outcome(None, None, None, end) for end in piece.ends]
        payloads = self._payloads(piece.records)
        outcomes = []
        for number, payload in enumerate(payloads):
            outcome = self._outcome(piece.records[number], payload, piece.ends[number])
            if outcome.error is not None and piece.is_abroad:  # a traceback cannot travel
                note(outcome.error, "".join(traceback.format_exception(outcome.error)).rstrip())
            if outcome.error is None and piece.rows is not None:
                placed = piece.rows.place(piece.first_row + number, outcome.sample)
                outcome = outcome._replace(sample=placed, rows=piece.rows)
            outcomes.append(outcome)
        return outcomes

    def _payloads(self, records: list[int]) -> Iterator[Any]:
        if self._cache is None:
            yield from self._rows.read(records)
            return
        absent = [record for record in records if record not in self._cache]
        damaged: dict[int, Exception] = {}
        for record, payload in zip(absent, self._rows.read(absent), strict=True):
            if isinstance(payload, Exception):
                damaged[record] = payload
            else:
                self._cache[record] = payload
        for record in records:
            yield damaged.get(record) or self._cache[record]

    def _outcome(self, record: int, payload: Any, end: int | None) -> Outcome:
        if isinstance(payload, Exception):
            return Outcome(record, None, payload, end)
        random = np.random.default_rng((*self._key, record)) if self._is_random else None
        try:
            sample = self._decoder(payload, random)
            if self._decode is not None:
                sample = self._decode(sample)
            if self._augment is not None and random is not None:
                sample = self._augment(sample, random)
        except Exception as error:
            return Outcome(record, None, self._rows.blame(error, record), end)
        return Outcome(record, sample, None, end)

"""What the workers of a random-access reader do: read, decode, and say which record failed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.readers._batching import BatchMemory
from penstock.readers._errors import note
from penstock.readers._order import RecordOrder
from penstock.readers._ragged import Padding, add_lengths
from penstock.readers._read_options import Augment, Decode
from penstock.readers._workers import make_portable


class Records(Protocol):
    """Records by number, read from several threads: of files, or of a user's source.

    `damages` lists what is known to be missing before anything is read; `mean_record_bytes` decides
    how many records are decoded in one task.
    """

    @property
    def damages(self) -> Sequence[Exception]:
        """Return the errors of what cannot be reached at all."""
        ...

    @property
    def mean_record_bytes(self) -> int:
        """Return the mean size of a record, at least 1."""
        ...

    def read(self, records: Sequence[int]) -> Iterator[object]:
        """Yield the payload of each record, or an exception in its place."""
        ...

    def blame(self, error: Exception, record: int) -> Exception:
        """Return the error with the origin of the record."""
        ...

    def is_damage(self, error: Exception) -> bool:
        """Say whether an error is the data's fault, and may be skipped."""
        ...

    def reopen(self) -> Records:
        """Return a copy that opens files of its own."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class Decoder(Protocol):
    """What turns a payload into a sample; it can be pickled, so that readers travel to processes.

    `kind` names the reader in states, `is_random` says whether it needs a generator, and
    `pad_values` has the entries whose length differs between samples, with what pads them.
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
    def pad_values(self) -> Mapping[str, object]:
        """Return padding by entry."""
        ...

    def __call__(self, payload: Any, random: np.random.Generator | None) -> object:
        """Return the sample; raise an error for which `Records.is_damage` is true if it is none."""
        ...


class Piece(NamedTuple):
    """Records that one worker decodes, and the position after each: `None` inside a batch.

    `memory` is that of their batch, in which they begin at row `first_row`. `cached` has the
    payloads that are in memory already, and is `None` where records are not cached.
    """

    epoch: int
    records: list[int]
    ends: list[int | None]
    memory: BatchMemory | None = None
    first_row: int = 0
    cached: Mapping[int, object] | None = None
    is_abroad: bool = False

    def with_cached(self, cache: Mapping[int, object]) -> Piece:
        """Return the piece with what a cache has of its records."""
        return self._replace(cached={i: cache[i] for i in self.records if i in cache})

    def for_process(self) -> Piece:
        """Return what travels to another process: no memory of this one."""
        return self._replace(memory=None, is_abroad=True)


class Outcome(NamedTuple):
    """A sample or the error in its place, and the position after it: `None` inside a batch.

    Without a record it marks the end of a batch that has no record on this shard. `payload` is for
    the cache.
    """

    record: int | None
    sample: object
    error: Exception | None
    end: int | None
    memory: BatchMemory | None = None
    payload: object = None


def pieces(order: RecordOrder, epoch: int, position: int, size: int) -> Iterator[Piece]:
    """Yield an epoch's records from `position` on in pieces of at most `size`.

    A piece never spans two batches; without a batch size it spans several samples.
    """
    rows = order.epoch(epoch)
    single = Piece(epoch, [], [])
    for start in range(position, rows.total, rows.step):
        chosen = rows.rows(start)
        end = min(start + rows.step, rows.total)
        records = (
            list(range(chosen.start, chosen.stop))
            if isinstance(chosen, slice)
            else [int(record) for record in chosen]
        )
        # Single samples: a task for each would cost more than to decode a small record.
        if order.batch_size is None:
            single.records.extend(records)
            single.ends.extend([end] * len(records))
            if single.records and (len(single.records) >= size or end == rows.total):
                yield single
                single = Piece(epoch, [], [])
            continue
        memory = BatchMemory(len(records))
        # Once also for no record: the end of a batch that is empty on this shard is told all the
        # same.
        for at in range(0, max(1, len(records)), size):
            piece = records[at : at + size]
            ends: list[int | None] = [None] * max(1, len(piece))
            # A position inside a batch is none: only the last piece has the end.
            if at + size >= len(records):
                ends[-1] = end
            yield Piece(epoch, piece, ends, memory, at)


class PieceDecoder:
    """Decode pieces of any epoch. It holds no iterator, so a dropped iterator is freed at once.

    Args:
      records: where they are read.
      decoder: payload to sample.
      decode: the user's function of a sample.
      augment: the user's function of a sample and a generator, applied last.
      pad: the entries that get a length, and those that are padded to a fixed one.
      seed: record `i` draws from `(seed, epoch, i)`, so what it draws depends on nothing else: not
        on the workers, the batch or where a run was resumed.
    """

    def __init__(
        self,
        *,
        records: Records,
        decoder: Decoder,
        decode: Decode | None,
        augment: Augment | None,
        pad: Mapping[str, Padding],
        seed: int,
    ) -> None:
        self._records, self._decoder, self._seed = records, decoder, seed
        self._decode, self._augment, self._pad = decode, augment, pad
        self._is_random = decoder.is_random or augment is not None

    def __call__(self, piece: Piece) -> list[Outcome]:
        """Return the outcome of each record in order; of no record, one that ends the batch."""
        if not piece.records:
            return [Outcome(None, None, None, end) for end in piece.ends]
        outcomes = []
        for number, payload in enumerate(self._read_payloads(piece)):
            record, memory = piece.records[number], None
            sample, error = self._decode_record(piece.epoch, record, payload)
            if error is None and piece.memory is not None:
                memory = piece.memory
                sample = memory.place(piece.first_row + number, sample)
            # A traceback cannot travel to the reader's process: its text goes along as a note.
            elif error is not None and piece.is_abroad:
                note(error, "".join(traceback.format_exception(error)).rstrip())
                error = make_portable(error)
            # The cache is the reader's, so what a worker has read goes back beside the sample.
            is_new = piece.cached is not None and record not in piece.cached
            to_cache = payload if is_new and not isinstance(payload, Exception) else None
            outcomes.append(Outcome(record, sample, error, piece.ends[number], memory, to_cache))
        return outcomes

    def _read_payloads(self, piece: Piece) -> Iterator[object]:
        if not piece.cached:
            yield from self._records.read(piece.records)
            return
        cached = piece.cached
        absent = self._records.read([record for record in piece.records if record not in cached])
        for record in piece.records:
            yield cached[record] if record in cached else next(absent)

    def _decode_record(
        self, epoch: int, record: int, payload: object
    ) -> tuple[object, Exception | None]:
        """Return the sample, or the error that stands in its place."""
        if isinstance(payload, Exception):
            return None, payload
        # Of the record alone: a resumed run, and any number of workers, draw the same.
        random = np.random.default_rng((self._seed, epoch, record)) if self._is_random else None
        try:
            sample = self._decoder(payload, random)
            if self._decode is not None:
                sample = self._decode(sample)
            if self._augment is not None and random is not None:
                sample = self._augment(sample, random)
            if self._pad:
                sample = add_lengths(sample, self._pad)
        except Exception as error:
            return None, self._records.blame(error, record)
        return sample, None

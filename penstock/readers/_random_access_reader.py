"""The one iterator over records reached by number: any order, exact positions, read ahead.

`readers.indexed`, with what stands on it (image folders, TFDS, named sets), and the record files
differ in where the records are (`Records`) and in what decodes them; they share order, workers,
memory, skipping, shards and positions.
"""

from __future__ import annotations

import abc
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.readers import _batching, _tree
from penstock.readers._contract import IteratorBase, ReaderBase, State
from penstock.readers._errors import RecordError, note
from penstock.readers._order import RecordOrder, describe_rows
from penstock.readers._read_ahead import ParallelMap, WorkerProcesses, make_portable
from penstock.readers._read_options import ReadOptions

_LOGGER = logging.getLogger("penstock")
_MOST_NAMED = 5
# Records that a worker decodes at a time: a task costs 6 us, a small record 3 us.
_MAX_PIECE = 32
# Of images some five: still many pieces in a batch, so that no worker waits long for the last.
_PIECE_BYTES = 1 << 18


class Records(Protocol):
    """Records by number, read from several threads: of files, or of a user's source.

    `damages` lists what is known to be missing before anything is read; `mean_record_bytes` decides
    how many records are decoded in one task.
    """

    @property
    def damages(self) -> Sequence[Exception]: ...

    @property
    def mean_record_bytes(self) -> int: ...

    def read(self, records: Sequence[int]) -> Iterator[object]:
        """Yield the payload of each record, or an exception in its place."""
        ...

    def blame(self, error: Exception, record: int) -> Exception: ...

    def reopen(self) -> Records: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What turns a payload into a sample; it can be pickled, so that readers travel to processes.

    `kind` names the reader in states. `decode` raises a `RecordError` where a payload is no sample;
    it gets a generator where `is_random`. `padding` has the entries whose length differs between
    samples.
    """

    kind: str
    decode: Callable[[Any, np.random.Generator | None], object]
    is_random: bool = False
    padding: Mapping[str, _batching.Padding] = field(default_factory=dict)


class Piece(NamedTuple):
    """Records that one worker decodes, and the position after each: `None` inside a batch.

    `memory` is that of their batch, in which they begin at row `first_row`. `cached` has the
    payloads that are in memory already, and is `None` where records are not cached.
    """

    epoch: int
    records: list[int]
    ends: list[int | None]
    memory: _batching.BatchMemory | None = None
    first_row: int = 0
    cached: Mapping[int, object] | None = None


class Outcome(NamedTuple):
    """A sample or the error in its place, and the position after it: `None` inside a batch.

    Without a record it marks the end of a batch that has no record on this shard. `payload` is for
    the cache.
    """

    record: int | None
    sample: object
    error: Exception | None
    end: int | None
    memory: _batching.BatchMemory | None = None
    payload: object = None


def pieces(order: RecordOrder, epoch: int, position: int, size: int) -> Iterator[Piece]:
    """Yield an epoch's records from `position` on in pieces of at most `size`.

    A piece never spans two batches; without a batch size it spans several samples.
    """
    rows = order.epoch(epoch, position)
    single = Piece(epoch, [], [])
    for start in range(position, rows.total, rows.step):
        chosen = rows.rows(start)
        end = min(start + rows.step, rows.total)
        is_slice = isinstance(chosen, slice)
        records = list(range(chosen.start, chosen.stop)) if is_slice else chosen.tolist()
        # Single samples: a task for each would cost more than to decode a small record.
        if order.batch_size is None:
            single.records.extend(records)
            single.ends.extend([end] * len(records))
            if single.records and (len(single.records) >= size or end == rows.total):
                yield single
                single = Piece(epoch, [], [])
            continue
        memory = _batching.BatchMemory(len(records))
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

    It is pickled for processes: `transform` runs in the thread that iterates, and stays there.
    """

    def __init__(self, records: Records, decoder: Decoder, options: ReadOptions) -> None:
        self._records, self._decoder, self._seed = records, decoder, options.seed
        self._decode, self._augment, self._pad = options.decode, options.augment, options.pad
        self._is_random = decoder.is_random or options.augment is not None

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
            elif error is not None:
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
        if isinstance(payload, Exception):
            return None, payload
        # Of the record alone: a resumed run, and any number of workers, draw the same.
        random = np.random.default_rng((self._seed, epoch, record)) if self._is_random else None
        try:
            sample = self._decoder.decode(payload, random)
            if self._decode is not None:
                sample = self._decode(sample)
            if self._augment is not None and random is not None:
                sample = self._augment(sample, random)
            if self._pad:
                sample = _batching.add_lengths(sample, self._pad)
        except Exception as error:
            return None, self._records.blame(error, record)
        return sample, None


class RandomAccessReader(ReaderBase[Any], abc.ABC):
    """A reader over records reached by number, the base of our random-access readers.

    A subclass gives records and order by `index`, which is called once.
    """

    def __init__(self, decoder: Decoder, options: ReadOptions) -> None:
        super().__init__()
        self.name, self.decoder, self.options = options.name, decoder, options
        self.cache: dict[int, object] | None = {} if options.cache_records else None
        self._processes: WorkerProcesses | None = None
        self._indexed: tuple[Any, RecordOrder] | None = None
        self.is_common = options.batch_size is None and options.shard is None

    @abc.abstractmethod
    def index(self) -> tuple[Records, RecordOrder]:
        """Return the records, and which of them make which batch."""

    def _index(self) -> tuple[Any, RecordOrder]:
        # Threads may ask at the same time: files are indexed once.
        with self._lock:
            self._indexed = self._indexed or self.index()
            return self._indexed

    @property
    def records(self) -> Any:
        """Return the records; of files, those of the indexed ones."""
        return self._index()[0]

    @property
    def order(self) -> RecordOrder:
        return self._index()[1]

    def reorder(self, order: RecordOrder) -> None:
        """Read in another order, or other records, from the next pass on."""
        self._indexed = (self.records, order)

    def __getstate__(self) -> dict[str, object]:
        # Memory and processes stay here: what travels to a worker is what it needs to read.
        cache = None if self.cache is None else {}
        return {**super().__getstate__(), "cache": cache, "_processes": None}

    def __len__(self) -> int:
        # Skipped records make batches shorter; only a batch that is skipped whole would count.
        return len(self.order)

    def iterate(self, epoch: int) -> RandomAccessIterator:
        return RandomAccessIterator(self, epoch)

    def get_processes(self) -> WorkerProcesses | None:
        num_workers = self.options.worker_count
        if self.options.workers != "process" or num_workers == 0:
            return None
        with self._lock:
            if self._processes is None:
                decode = PieceDecoder(self.records, self.decoder, self.options)
                self._processes = WorkerProcesses(decode, num_workers)
            return self._processes

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()


class RandomAccessIterator(IteratorBase[Any]):
    """One pass over a `RandomAccessReader`.

    Attributes:
      num_skipped: records left out so far in this pass, the damaged ends of files included.
    """

    _results: ParallelMap[Piece, list[Outcome]] | None = None
    _records: Records | None = None

    def __init__(self, reader: RandomAccessReader, epoch: int) -> None:
        self._outcomes: deque[Outcome] = deque()
        self.kind, self.epoch = reader.decoder.kind, epoch
        self._source, self._order = reader, reader.order
        self.num_skipped = len(reader.records.damages)
        self._position, self._num_read = 0, 0
        self._failure: BaseException | None = None
        self._template: _tree.ArrayTree | None = None
        self._start()

    def __next__(self) -> Any:
        """Return the next batch, leaves `[b, ...]`, short by what was skipped; or the next sample.

        Raises:
          RecordError: a record is damaged or not what was declared (its file, byte offset and
            number are in the message and the attributes), and errors are not skipped.
        """
        # A pass that failed keeps failing: after the error, its position is unknown.
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except StopIteration:
            self._finish()
            raise
        except BaseException as error:
            self._failure = error
            self._release()
            raise

    def _next(self) -> object:
        is_single = self._order.batch_size is None
        while True:
            samples, records, end, memory = [], [], None, None
            while end is None:
                outcome = self._take()
                end = outcome.end
                if outcome.error is not None:
                    self._skip(outcome.error)
                elif outcome.record is not None:
                    samples.append(outcome.sample)
                    records.append(outcome.record)
                    memory = outcome.memory
            self._position = end
            self._num_read += len(samples)
            if is_single and samples:
                return self._apply_transform(samples[0], records)
            if samples:
                return self._apply_transform(self._stack(samples, records, memory), records)
            # Only among several shards may one have no record of a batch.
            if not is_single and self._order.shard.count > 1:
                return self._empty_batch()

    def _stack(
        self, samples: Sequence[object], records: list[int], memory: _batching.BatchMemory | None
    ) -> _tree.ArrayTree:
        try:
            padding, first = self._source.decoder.padding, samples[0]
            # `decode` may have left out some of the features declared without a length.
            names = first if padding and isinstance(first, Mapping) else ()
            padding = {name: how for name, how in padding.items() if name in names}
            samples = _batching.pad_to_longest(samples, {**padding, **self._source.options.pad})
            return _batching.stack_samples(samples, memory)
        # Only an unlike sample tells which record is at fault.
        except _batching.UnlikeError as error:
            raise self._source.records.blame(error, records[error.number]) from error.__cause__

    def _take(self) -> Outcome:
        while not self._outcomes:
            if self._results is None:
                raise StopIteration
            self._outcomes.extend(next(self._results))
            if self._source.cache is not None:
                self._source.cache.update(
                    (outcome.record, outcome.payload)
                    for outcome in self._outcomes
                    if outcome.record is not None and outcome.payload is not None
                )
        return self._outcomes.popleft()

    def _skip(self, error: Exception) -> None:
        """Leave a record out and count it; raise what is not the fault of the data."""
        if self._source.options.on_error == "raise" or not isinstance(error, RecordError):
            raise error
        self.num_skipped += 1
        if len(self._skipped) < _MOST_NAMED:
            self._skipped.append(error)

    def _empty_batch(self) -> object:
        """Return a batch of no samples: all processes must take the same number of steps."""
        # Its structure is that of any record, wherever it belongs: here there may be none to read.
        for record in range(self._order.num_records):
            if self._template is not None:
                break
            (outcome,) = self._decode(Piece(self.epoch, [record], [None]))
            if outcome.error is None:
                self._template = _batching.stack_samples([outcome.sample])
            elif record == self._order.num_records - 1:
                raise outcome.error
        return self._apply_transform(
            _tree.tree_map(lambda leaf: leaf[:0].copy(), self._template), []
        )

    def _apply_transform(self, item: object, records: list[int]) -> object:
        transform = self._source.options.transform
        if transform is None:
            return item
        try:
            return transform(item)
        except Exception as error:
            where = f"epoch {self.epoch}, {describe_rows('record', records)}"
            note(error, f"in {self._source.name}(transform=), {where}")
            raise

    def _finish(self) -> None:
        """Report what was skipped, once a pass; a pass that skipped everything is an error."""
        if self._results is None:
            return
        self._release()
        if not self.num_skipped:
            return
        _LOGGER.warning(
            "%s: epoch %d skipped %d of %d records.%s",
            self._source.name,
            self.epoch,
            self.num_skipped,
            self._order.num_records,
            self._describe_skipped(),
        )
        if self._skipped and self._num_read == 0 and self._position == self._order.total:
            self._failure = first = self._skipped[0]
            first.add_note("every record of the pass was skipped")
            raise first from None

    def _describe_skipped(self) -> str:
        # A state has their number alone.
        if not self._skipped:
            return ""
        more = self.num_skipped - len(self._skipped)
        names = [*map(_find_origin, self._skipped[1:]), *([f"{more} more"] if more > 0 else [])]
        listing = f" The others: {'; '.join(names)}." if names else ""
        return f" The first: {self._skipped[0]}{listing}"

    def _start(self) -> None:
        source, options = self._source, self._source.options
        self._skipped = list(source.records.damages[:_MOST_NAMED])
        # Each pass has open files of its own: to close one leaves the others alone.
        records, processes = source.records.reopen(), source.get_processes()
        num_workers = options.worker_count
        # This shard's records of a batch are cut into a piece for each worker at least.
        share = self._order.step // self._order.shard.count
        size = min(_MAX_PIECE, max(1, _PIECE_BYTES // records.mean_record_bytes))
        if self._order.batch_size is not None:
            size = min(size, -(-share // max(1, num_workers)))
        self._records = records
        self._decode = PieceDecoder(records, source.decoder, options)
        items: Iterator[Piece] = pieces(self._order, self.epoch, self._position, size)
        cache = source.cache
        if cache is not None:
            items = (
                piece._replace(cached={i: cache[i] for i in piece.records if i in cache})
                for piece in items
            )
        if processes is not None:
            items = (piece._replace(memory=None) for piece in items)
        num_pieces = max(num_workers, -(-share // size))  # of a batch
        self._results = ParallelMap(
            self._decode,
            items,
            num_workers=num_workers,
            # The batch that is being put together and, with its last piece, `look_ahead` more.
            num_ahead=max(options.look_ahead * num_pieces + 1, num_workers),
            num_at_first=num_pieces + 1,
            processes=processes,
        )

    def _save(self) -> State:
        return {
            **self._order.save_position(self._position),
            "num_skipped": self.num_skipped,
            "num_read": self._num_read,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self._position = self._order.check_position(state, self.kind)
        # What was read ahead belongs to the old position, and an old failure too.
        self.num_skipped, self._num_read = state["num_skipped"], state["num_read"]
        self._failure = None
        self._release()
        self._start()

    def _release(self) -> None:
        # Decoded but not asked for: a closed pass has ended.
        self._outcomes.clear()
        if self._results is not None:
            self._results.close()
            self._results = None
        if self._records is not None:
            self._records.close()

    def _abandon(self) -> None:
        if self._results is not None:
            self._results.abandon()


def _find_origin(error: BaseException) -> str:
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("in ")]
    return notes[0].removeprefix("in ") if notes else str(error)

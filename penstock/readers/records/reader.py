"""The reader over record files: any order, exact positions, decoding in threads."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.readers import _tree
from penstock.readers._contract import IteratorBase, ReaderBase, State
from penstock.readers._errors import message, note
from penstock.readers._order import RecordOrder
from penstock.readers._pool import num_usable_cores
from penstock.readers.records.batching import BufferPool, stack_samples
from penstock.readers.records.decoding import (
    Augment,
    Decode,
    Decoder,
    Outcome,
    Piece,
    PieceDecoder,
    pieces,
)
from penstock.readers.records.errors import RecordError
from penstock.readers.records.files import RecordFiles, RecordFormat
from penstock.readers.records.ordered_map import OrderedMap
from penstock.readers.sharding import BatchSize, Shard, resolve_batch_size

_logger = logging.getLogger("penstock.readers")
_MAX_PIECE = 32  # records a thread decodes at a time: a task costs 20 us, a small record 3 us
_PIECE_BYTES = 1 << 17  # of images two or three: longer pieces leave threads idle at a batch's end
_BATCHES_AHEAD = 2

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How records become batches: the options that `tfrecord` and `ofrecord` share.

    Args:
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      shuffle: draw a new order of all records each epoch.
      seed: decides the orders, and what `augment` and random preprocessors draw.
      drop_remainder: leave out a last batch that is not full.
      shard: the part this process reads.
      on_error: `"raise"`, or `"skip"`: a record that is damaged or not what was declared is left
        out, its batch is that much shorter, `iterator.num_skipped` counts it and one log line a
        pass reports it. A damaged length hides the rest of its file, which then counts as one.
        Exceptions of your own functions are raised either way, with the record's file and byte
        offset in a note.
      decode: a function of one sample, run in the threads, e.g. to decode an image.
      augment: a function of one sample and a numpy generator, run in the threads after `decode`;
        record `i` draws from `(seed, epoch, i)`.
      transform: a function of a batch (of a sample, without a batch size), run by the caller.
      num_workers: threads, one a core by default; 0 decodes in the calling thread.
      cache_records: keep the encoded records in memory after the first pass.

    Raises:
      ValueError: an unknown `on_error`, a negative number of threads, a batch size below 1.
      ShardError: a batch size that is not a multiple of the number of processes.
    """

    batch_size: BatchSize | None = None
    shuffle: bool = False
    seed: int = 0
    drop_remainder: bool = False
    shard: Shard = field(default_factory=Shard)
    on_error: OnError = "raise"
    decode: Decode | None = None
    augment: Augment | None = None
    transform: Callable[[Any], Any] | None = None
    num_workers: int | None = None
    cache_records: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.on_error not in ("raise", "skip"):
            raise ValueError(
                message(
                    "on_error",
                    repr(self.on_error),
                    "'raise' or 'skip'",
                    "A record that cannot be read stops the run or is left out and counted",
                    "Pass on_error='skip' to leave such records out",
                )
            )
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(
                message(
                    "num_workers",
                    self.num_workers,
                    "an int >= 0",
                    "0 decodes in the calling thread",
                    "Leave it out for one thread a core",
                )
            )
        if self.batch_size is not None:
            resolve_batch_size(self.batch_size, self.shard)

    @property
    def threads(self) -> int:
        """Return the number of threads: one for each core this process may use."""
        return num_usable_cores() if self.num_workers is None else self.num_workers


class RecordReader(ReaderBase):
    """A reader over record files. Made by `tfrecord` and `ofrecord`, which document it.

    Args:
      paths: the files, in order.
      form: their framing, compression and cache.
      decoder: payload to sample.
      options: batches, order, errors, threads.
    """

    def __init__(
        self, paths: Sequence[str], form: RecordFormat, decoder: Decoder, options: ReadOptions
    ) -> None:
        """Take what is checked; files are indexed when first needed."""
        super().__init__()
        self.paths, self.form = list(paths), form
        self.decoder, self.options = decoder, options
        self._indexing = threading.Lock()
        self._indexed: tuple[RecordFiles, RecordOrder] | None = None
        self.cache: dict[int, bytes] | None = {} if options.cache_records else None
        # Of the reader, not of a pass: a pass begins with the memory of the one before it.
        self.pool = BufferPool()

    def __getstate__(self) -> dict[str, Any]:
        """Leave locks, cached records and the memory of batches behind."""
        state = super().__getstate__()
        cache = None if self.cache is None else {}
        return {**state, "_indexing": None, "pool": None, "cache": cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make new locks."""
        super().__setstate__(state)
        self._indexing, self.pool = threading.Lock(), BufferPool()

    @property
    def files(self) -> RecordFiles:
        """Return the indexed files.

        Raises:
          RecordError: a file is damaged and errors are raised, not skipped.
          OSError: a file cannot be opened.
        """
        return self._index()[0]

    @property
    def order(self) -> RecordOrder:
        """Return which records make which batch; raises as `files` does."""
        return self._index()[1]

    def _index(self) -> tuple[RecordFiles, RecordOrder]:
        with self._indexing:
            if self._indexed is None:
                options, files = self.options, RecordFiles(self.paths, self.form)
                if files.damages and options.on_error == "raise":
                    raise files.damages[0]
                order = RecordOrder(
                    num_records=len(files),
                    batch_size=options.batch_size,
                    shuffle=options.shuffle,
                    seed=options.seed,
                    drop_remainder=options.drop_remainder,
                    shard=options.shard,
                    file_names=tuple(files.paths),
                    file_sizes=files.sizes,
                )
                self._indexed = files, order
            return self._indexed

    def __len__(self) -> int:
        """Return the number of batches (samples without a batch size) when none is skipped."""
        return len(self.order)

    def iterate(self, epoch: int) -> "RecordIterator":
        """Return an iterator over `epoch`."""
        return RecordIterator(self, epoch)


class RecordIterator(IteratorBase):
    """One pass over record files.

    Attributes:
      num_skipped: records left out so far in this pass, damaged ends of files included.
    """

    _results: OrderedMap[Piece, list[Outcome]] | None = None
    _files: RecordFiles | None = None

    def __init__(self, reader: RecordReader, epoch: int) -> None:
        """Start at the first batch of `epoch`."""
        self._outcomes: deque[Outcome] = deque()
        self.kind, self.epoch = reader.decoder.kind, epoch
        self._source, self._order = reader, reader.order
        damages = reader.files.damages
        self.num_skipped = len(damages)
        self._first_skipped = damages[0] if damages else None
        self._position, self._num_read = 0, 0
        self._failure: BaseException | None = None
        self._template: Any = None
        self._start()

    def __next__(self) -> Any:
        """Return the next batch, leaves `[b, ...]`, short by what was skipped; or the next sample.

        Raises:
          RecordError: a record is damaged or not what was declared (its file, byte offset and
            number are in the message and the attributes), and errors are not skipped.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._failure = error
            self._release()
            raise

    def _next(self) -> Any:
        is_single = self._order.batch_size is None
        while True:
            samples, end, rows = [], None, None
            while end is None:
                outcome = self._take()
                end = outcome.end
                if outcome.error is not None:
                    self._skip(outcome.error)
                elif not outcome.is_empty:
                    samples.append(outcome.sample)
                    rows = outcome.rows
            self._position = end
            self._num_read += len(samples)
            if is_single and samples:
                return self._transformed(samples[0])
            if samples:
                batch = stack_samples(samples, self._source.decoder.pad_values, rows)
                if self._order.shard.count > 1 and self._template is None:
                    self._template = _tree.tree_map(lambda leaf: leaf[:0].copy(), batch)
                return self._transformed(batch)
            if not is_single and self._order.shard.count > 1:
                return self._empty_batch()

    def _take(self) -> Outcome:
        while not self._outcomes:
            if self._results is None:
                raise StopIteration
            self._outcomes.extend(next(self._results))
        return self._outcomes.popleft()

    def _skip(self, error: BaseException) -> None:
        """Count a record left out; what is not the data's fault is raised in any case."""
        if self._source.options.on_error == "raise" or not isinstance(error, RecordError):
            raise error
        self.num_skipped += 1
        self._first_skipped = self._first_skipped or error

    def _empty_batch(self) -> Any:
        """Return a batch of no samples: all processes must take the same number of steps."""
        for record in range(self._order.num_records):
            if self._template is not None:
                break
            (outcome,) = self._decode(Piece([record], [None]))
            if outcome.error is None:
                values = self._source.decoder.pad_values
                self._template = stack_samples([outcome.sample], values)
        if self._template is None and self._first_skipped is not None:
            raise self._first_skipped
        return self._transformed(_tree.tree_map(lambda leaf: leaf[:0].copy(), self._template))

    def _transformed(self, item: Any) -> Any:
        transform = self._source.options.transform
        if transform is None:
            return item
        try:
            return transform(item)
        except Exception as error:
            where = f"epoch {self.epoch}, before position {self._position}"
            note(error, f"in {self.kind}(transform=), {where}")
            raise

    def _end(self) -> None:
        """Report what was skipped, once a pass; a pass that read nothing is an error."""
        if self._results is None:
            return
        self._release()
        if self._first_skipped is None:
            return
        _logger.warning(
            "%s: epoch %d skipped %d of %d records. The first: %s",
            self.kind,
            self.epoch,
            self.num_skipped,
            self._order.num_records,
            self._first_skipped,
        )
        if self._num_read == 0 and self._position == self._order.total:
            self._failure = self._first_skipped
            self._first_skipped.add_note("every record of the pass was skipped")
            raise self._first_skipped from None

    def _start(self) -> None:
        """Start decoding at the position."""
        options, files = self._source.options, self._source.files.reopened()
        threads = options.threads
        share = self._order.step // self._order.shard.count
        size = min(_MAX_PIECE, max(1, _PIECE_BYTES // files.mean_record_bytes))
        if self._order.batch_size is not None:
            size = min(size, -(-share // max(1, threads)))
        self._files = files
        self._decode = PieceDecoder(
            files=files,
            decoder=self._source.decoder,
            decode=options.decode,
            augment=options.augment,
            key=(options.seed, self.epoch),
            cache=self._source.cache,
        )
        self._results = OrderedMap(
            self._decode,
            pieces(self._order, self.epoch, self._position, size, self._source.pool),
            num_threads=threads,
            num_ahead=2 * threads + _BATCHES_AHEAD * -(-share // size),
        )

    def _save(self) -> State:
        return {
            **self._order.save_position(self._position),
            "num_skipped": self.num_skipped,
            "num_read": self._num_read,
        }

    def _load(self, state: State) -> None:
        self._position = self._order.check_position(state, self.kind)
        self.num_skipped, self._num_read = state["num_skipped"], state["num_read"]
        self._failure = None
        self._release()
        self._start()

    def _release(self) -> None:
        self._outcomes.clear()  # decoded but not asked for: a closed pass has ended
        if self._results is not None:
            self._results.close()
            self._results = None
        if self._files is not None:
            self._files.close()

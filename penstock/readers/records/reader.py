"""The reader over record files: what `readers.tfrecord` and `readers.ofrecord` make."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.readers._decoding import Decoder
from penstock.readers._order import RecordOrder
from penstock.readers._random_access_reader import RandomAccessReader
from penstock.readers._read_options import ReadOptions
from penstock.readers._workers import check_workers
from penstock.readers.records.files import RecordFiles, RecordFormat


class RecordReader(RandomAccessReader):
    """A reader over record files. Made by `tfrecord` and `ofrecord`, which document it.

    Args:
      paths: the files, in order.
      form: their framing, compression and cache.
      decoder: payload to sample.
      options: batches, order, errors, workers.
    """

    def __init__(
        self, paths: Sequence[str], form: RecordFormat, decoder: Decoder, options: ReadOptions
    ) -> None:
        # Files are indexed when the first pass or `len` needs it: that may take a while.
        super().__init__(decoder, options)
        check_workers(options.name, options.workers, {"decoder": decoder})
        self.paths, self.form = list(paths), form
        self._indexing = threading.Lock()
        self._indexed: tuple[RecordFiles, RecordOrder] | None = None

    def __getstate__(self) -> dict[str, object]:
        # A lock cannot be pickled.
        return {**super().__getstate__(), "_indexing": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._indexing = threading.Lock()

    @property
    def records(self) -> RecordFiles:
        """Return the records of the indexed files.

        Raises:
          RecordError: a file is damaged and errors are raised, not skipped.
          OSError: a file cannot be opened.
        """
        return self._index()[0]

    @property
    def order(self) -> RecordOrder:
        """Return which records make which batch; raises as `records` does."""
        return self._index()[1]

    def _index(self) -> tuple[RecordFiles, RecordOrder]:
        # Threads may ask at the same time; files are indexed once.
        with self._indexing:
            if self._indexed is None:
                files = RecordFiles(self.paths, self.form)
                if files.damages and self.options.on_error == "raise":
                    raise files.damages[0]
                self._indexed = (
                    files,
                    self.options.order(len(files), tuple(files.paths), files.sizes),
                )
            return self._indexed

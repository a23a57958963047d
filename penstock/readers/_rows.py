"""Reading rows of a random-access source, in the caller, in threads or in processes."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from penstock.readers import _tree
from penstock.readers._errors import message, note
from penstock.readers._pool import start_pool

Augment = Callable[[Any, np.random.Generator], Any]


class RowReader:
    """Reads, decodes and augments single records; its exceptions say which record it was."""

    def __init__(
        self,
        name: str,
        source: Any,
        decode: Callable[[Any], Any] | None,
        augment: Augment | None,
        seed: int,
    ) -> None:
        """Take a source with `source[i]`, and `source.origin(i)` where it can tell more."""
        self.name = name
        self.source = source
        self.decode = decode
        self.augment = augment
        self.seed = seed

    def __call__(self, index: int, epoch: int) -> Any:
        """Return the record; what is random in it depends on `(seed, epoch, index)` alone."""
        try:
            sample = self.source[index]
            if self.decode is not None:
                sample = self.decode(sample)
            if self.augment is not None:
                random = np.random.default_rng((self.seed, epoch, index))
                sample = self.augment(sample, random)
            return sample
        except Exception as error:
            note(error, self.origin(index))
            raise

    def origin(self, index: int) -> str:
        """Return the note that says which record it is."""
        origin = getattr(self.source, "origin", None)
        where = f": {origin(index)}" if callable(origin) else ""
        return f"in {self.name}, record {index}{where}"


class BatchBuffer:
    """A batch that is filled row by row from several threads, each copying its own rows.

    The first sample decides structure, shapes and dtypes.
    """

    def __init__(self, num_rows: int) -> None:
        """Wait for the first sample; nothing is allocated yet."""
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self._leaves: list[np.ndarray] = []
        self._sample: Any = None

    def put(self, row: int, sample: Any, where: str) -> None:
        """Copy a sample into its row.

        Raises:
          ValueError: its structure, a shape or a dtype is not the first sample's.
        """
        leaves = [(path, _tree.as_leaf(leaf)) for path, leaf in _tree.leaves_with_path(sample, "")]
        with self._lock:
            if self._sample is None:
                self._leaves = [
                    np.empty((self._num_rows, *leaf.shape), leaf.dtype) for _, leaf in leaves
                ]
                self._sample = sample
        got = [(path, leaf.shape, leaf.dtype) for path, leaf in leaves]
        paths = [path for path, _ in _tree.leaves_with_path(self._sample, "")]
        want = [
            (path, out.shape[1:], out.dtype) for path, out in zip(paths, self._leaves, strict=True)
        ]
        if got != want:
            raise ValueError(
                message(
                    f"sample {where}",
                    _listed(got),
                    _listed(want),
                    "The samples of a batch are stacked",
                    "Let decode return one structure, shape and dtype, e.g. resize images",
                )
            )
        for (_, leaf), out in zip(leaves, self._leaves, strict=True):
            out[row, ...] = leaf  # the dots: an object leaf is its value, not an array

    def batch(self) -> Any:
        """Return the batch, leaves `[b, ...]`."""
        leaves = iter(self._leaves)
        return _tree.tree_map(lambda _: next(leaves), self._sample)


class RowEngine:
    """Reads batches of rows, or single samples, by the caller or by workers."""

    def __init__(self, read: RowReader, num_workers: int, workers: str, is_single: bool) -> None:
        """Start nothing yet; the first `submit` does."""
        self.read = read
        self.num_workers = num_workers
        self.is_process = workers == "process"
        self.is_single = is_single
        self._workers = workers
        self._pool: Executor | None = None

    def submit(self, indices: list[int], epoch: int) -> "PendingRows":
        """Begin to read a batch, or a sample; without workers it is read when it is asked for."""
        pending = PendingRows(self.read, indices, epoch, self.is_single)
        if not self.num_workers:
            return pending
        if self._pool is None:
            self._pool = start_pool(self._workers, self.num_workers, _set_up_process, self.read)
        # Runs of rows, not single rows: a task costs some 20 us. Two runs a worker and batch
        # still end together; more than 16 rows gain nothing.
        run = min(max(len(indices) // (2 * self.num_workers), 1), 16)
        for row in range(0, len(indices), run):
            rows = indices[row : row + run]
            if self.is_process:
                task = self._pool.submit(_read_in_process, rows, epoch)
            elif self.is_single:
                task = self._pool.submit(_read_list, self.read, rows, epoch)
            else:
                task = self._pool.submit(_fill_rows, self.read, pending.buffer, row, rows, epoch)
            pending.tasks.append((row, task))
        return pending

    def close(self) -> None:
        """End the workers, when they are done with the record in hand; `submit` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class PendingRows:
    """A batch, or a single sample, that is being read."""

    def __init__(self, read: RowReader, indices: list[int], epoch: int, is_single: bool) -> None:
        """Wait for tasks; without any the caller reads."""
        self.indices = indices
        self.buffer = BatchBuffer(len(indices))
        self.tasks: list[tuple[int, Future[Any]]] = []
        self._read = read
        self._epoch = epoch
        self._is_single = is_single

    def result(self) -> Any:
        """Wait for the rows and put them together; a worker's exception is raised here."""
        if self._is_single:
            return (
                self.tasks[0][1].result()[0]
                if self.tasks
                else self._read(self.indices[0], self._epoch)
            )
        if not self.indices:
            sample = self._read(
                0, self._epoch
            )  # for structure and shapes: this shard's part is empty
            return _tree.tree_map(lambda leaf: leaf[:0], _tree.stack([sample]))
        if not self.tasks:
            _fill_rows(self._read, self.buffer, 0, self.indices, self._epoch)
        for row, task in self.tasks:
            for offset, sample in enumerate(task.result() or ()):  # threads return none
                index = self.indices[row + offset]
                self.buffer.put(row + offset, sample, f"of {self._read.name}, record {index}")
        return self.buffer.batch()

    def cancel(self) -> None:
        """Cancel what no worker has begun."""
        for _, task in self.tasks:
            task.cancel()


def _fill_rows(
    read: RowReader, buffer: BatchBuffer, first_row: int, indices: list[int], epoch: int
) -> None:
    for row, index in enumerate(indices, first_row):
        buffer.put(row, read(index, epoch), f"of {read.name}, record {index}")


def _read_list(read: RowReader, indices: list[int], epoch: int) -> list[Any]:
    return [read(index, epoch) for index in indices]


# A worker process keeps its reader here: pickled once a process, not once a task.
_IN_PROCESS: dict[str, RowReader] = {}


def _set_up_process(read: RowReader) -> None:
    _IN_PROCESS["read"] = read


def _read_in_process(indices: list[int], epoch: int) -> list[Any]:
    return _read_list(_IN_PROCESS["read"], indices, epoch)


def _listed(leaves: list[tuple[str, tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{path} {list(shape)} {dtype}".strip() for path, shape, dtype in leaves)

"""`xmap_readers`: a mapper in many threads or processes."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from penstock.readers._contract import ReaderBase, ReaderLike, State, reader_length
from penstock.readers._errors import check_int, note
from penstock.readers._foreign import of
from penstock.readers._pool import (
    WorkerProcesses,
    Workers,
    WorkerThreads,
    check_workers,
    result_of,
)
from penstock.readers.decorators._stage import Stage, StageIterator, name_of, origin


class _Put:
    """Reports a finished sample; knows the queue only, so no future keeps the iterator alive."""

    def __init__(self, finished: SimpleQueue[int], number: int) -> None:
        self._finished = finished
        self._number = number

    def __call__(self, _: Future[Any]) -> None:
        self._finished.put(self._number)


class _XmapIterator(StageIterator):
    """Keeps a window of samples in flight; the source is read by the consumer's own thread.

    So there is no feeder to wait for: nothing can hang, and an exception of the source takes
    its place behind the samples read before it.
    """

    kind = "xmap_readers"

    def __init__(
        self,
        source: ReaderBase,
        epoch: int,
        mapper: Callable[[Any], Any],
        num_workers: int,
        window: int,
        order: bool,
        processes: WorkerProcesses | None,
    ) -> None:
        super().__init__([source], epoch)
        self._name = f"xmap_readers({name_of(mapper)})"
        self._window = window
        self._in_order = order
        self._threads = WorkerThreads(mapper, num_workers)
        self._workers = processes or self._threads
        self._reset(0, ())

    def _reset(self, first: int, done: tuple[int, ...]) -> None:
        self._num_read = first  # samples read from the source
        self._done = set(done)  # numbers delivered before an older one
        # number -> its future and the source's position before it, oldest first
        self._flying: dict[int, tuple[Future[Any], State]] = {}
        self._finished: SimpleQueue[int] = SimpleQueue()
        self._is_read = False  # to its end, or to the error it raised
        self._source_error: Exception | None = None

    def _fill(self) -> None:
        source = self._inner[0]
        while len(self._flying) < self._window and not self._is_read:
            before = source.get_state()
            try:
                item = next(source)
            except StopIteration:
                self._is_read = True
                return
            except Exception as error:  # raised behind the samples before it
                self._is_read, self._source_error = True, error
                return
            number = self._num_read
            self._num_read += 1
            if number in self._done:
                continue
            future = self._workers.submit(item)
            self._flying[number] = (future, before)
            if not self._in_order:
                future.add_done_callback(_Put(self._finished, number))

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        self._fill()
        if not self._flying:
            self._threads.close()
            if self._source_error is None:
                raise StopIteration
            error, self._source_error = self._source_error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle that would keep workers alive
        number = next(iter(self._flying)) if self._in_order else self._finished.get()
        future = self._flying[number][0]
        try:
            mapped = result_of(future)
        except Exception as error:
            note(error, origin(self._name, number, self.epoch))
            self.close()
            raise
        oldest = next(iter(self._flying))
        del self._flying[number]
        if number == oldest:
            now_oldest = next(iter(self._flying), self._num_read)
            self._done = {one for one in self._done if one > now_oldest}
        else:
            self._done.add(number)
        return mapped

    def _save(self) -> State:
        if not self._flying:
            return {
                "source": self._inner[0].get_state(),
                "first": self._num_read,
                "done": sorted(one for one in self._done if one >= self._num_read),
            }
        oldest, (_, before) = next(iter(self._flying.items()))
        return {"source": before, "first": oldest, "done": sorted(self._done)}

    def _load(self, state: State) -> None:
        self._cancel()
        self._inner[0].set_state(state["source"])
        self._reset(state["first"], state["done"])

    def _cancel(self) -> None:
        for future, _ in self._flying.values():
            future.cancel()

    def _release(self) -> None:
        self._cancel()
        self._threads.close()
        super()._release()

    def _abandon(self) -> None:
        self._threads.abandon()


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: ReaderLike,
    process_num: int,
    buffer_size: int,
    order: bool = False,
    *,
    workers: Workers = "thread",
) -> Stage:
    """Map samples in `process_num` threads or processes: Fluid's `xmap_readers`.

    An exception of `mapper` arrives with the sample's number and ends the pass. Threads start
    with the first sample and end with the pass, or when the iterator is closed or dropped;
    processes are kept for the next pass, and end when the reader is closed or dropped.
    A position can be restored in either order: no sample is lost or repeated.

    Args:
      mapper: a function of a sample.
      reader: a reader of samples, read by the thread that iterates.
      process_num: number of workers.
      buffer_size: samples ready or in work beyond one a worker.
      order: keep the reader's order; else yield samples as they are ready.
      workers: `"thread"`, right for opencv and numpy, which release the GIL, or `"process"`,
        where mapper, samples and results are pickled and a script needs
        `if __name__ == "__main__":`.

    Raises:
      ValueError: a count below 1, or unknown workers.
      TypeError: processes, and a mapper that cannot be pickled.

    >>> list(xmap_readers(lambda x: x * x, lambda: range(5), 2, 4, order=True))
    [0, 1, 4, 9, 16]
    """
    source = of(reader)
    check_int("xmap_readers(process_num)", process_num, 1, "It counts workers")
    check_int("xmap_readers(buffer_size)", buffer_size, 1, "It counts samples")
    check_workers("xmap_readers", workers, {"mapper": mapper})
    window = process_num + buffer_size
    processes = WorkerProcesses(mapper, process_num) if workers == "process" else None
    return Stage(
        "xmap_readers",
        lambda epoch: _XmapIterator(source, epoch, mapper, process_num, window, order, processes),
        lambda: reader_length(source),
        [source] if processes is None else [source, processes],
    )

"""One map over workers for every reader that works ahead: bounded, in order, leaving no thread.

`xmap_readers` maps samples with it, `buffered` reads its source in one thread, and the readers of
records decode pieces of batches. They differ in what an item is and in what a position means.

The threads are daemons, which those of `concurrent.futures` are not: a source that never answers
must not keep a program from ending. A sample of `xmap_readers` costs 5.5 us of processor time, with
futures 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, Self, TypeVar

from penstock.readers._errors import note
from penstock.readers._workers import Task, WorkerProcesses, WorkerThreads

Item = TypeVar("Item")
Result = TypeVar("Result")


class ParallelMap(Generic[Item, Result]):
    """Yield `function(item)` for each item, computed ahead by workers.

    Args:
      function: runs in threads of this map, or in the calling thread.
      items: read by the calling thread only, never more than `num_ahead` beyond the results that
        were returned. What it raises is raised after the results of the items before it.
      num_workers: threads; 0 computes in the calling thread.
      num_ahead: bound on the items that are waiting, in work or done.
      processes: call their own function in place of threads; they outlive the map.
      in_order: return results in the order of the items, else as they are ready.
      origin: says where item `number` came from; added as a note to what its function raises.

    >>> with ParallelMap(str, iter(range(3)), num_workers=2, num_ahead=4) as results:
    ...     list(results)
    ['0', '1', '2']
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Iterator[Item],
        *,
        num_workers: int,
        num_ahead: int,
        processes: WorkerProcesses | None = None,
        in_order: bool = True,
        origin: Callable[[int], str] | None = None,
    ) -> None:
        self._function, self._items = function, items
        self._num_ahead, self._in_order, self._origin = max(1, num_ahead), in_order, origin
        self._computes_here = num_workers == 0 and processes is None
        # Also where processes work: threads start with their first task, so that unused ones cost
        # nothing.
        self._threads = WorkerThreads(function, num_workers)
        self._workers = processes or self._threads
        self._num_taken = 0
        self._tasks: dict[int, Task[Item, Result]] = {}  # by number, the oldest first
        self._finished: SimpleQueue[None] = SimpleQueue()
        self._is_at_end = False
        self._items_error: Exception | None = None

    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest item whose result was not returned yet."""
        return next(iter(self._tasks), None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        """Return the next result."""
        return self.take()[1]

    def take(self) -> tuple[int, Result]:
        """Return the number of an item, counted from 0, and its result.

        Raises:
          StopIteration: there is no further item.
        """
        if self._computes_here:
            item = next(self._items)
            self._num_taken += 1
            return self._num_taken - 1, self._function(item)
        self._submit_ahead()
        number = self._wait()
        # Only now, when nothing can interrupt the wait any more: Ctrl-C must lose no result.
        task = self._tasks.pop(number)
        if task.error is not None and self._origin is not None:
            note(task.error, self._origin(number))
        return number, task.get_result()

    def _submit_ahead(self) -> None:
        while len(self._tasks) < self._num_ahead and not self._is_at_end:
            try:
                item = next(self._items)
            except StopIteration:
                self._is_at_end = True
                return
            except Exception as error:
                self._is_at_end, self._items_error = True, error
                return
            task = self._tasks[self._num_taken] = Task(item, self._finished)
            self._num_taken += 1
            self._workers.submit(task)

    def _wait(self) -> int:
        """Wait for the result that is next, and return its number."""
        if not self._tasks:
            self._threads.close()
            error, self._items_error = self._items_error or StopIteration(), None
            try:
                raise error
            finally:
                # Its traceback holds this frame: a cycle would keep the threads alive.
                del error
        while (number := self._find_finished()) is None:
            self._finished.get()
            # Another thread has closed the map.
            if not self._tasks:
                raise StopIteration
        # Else a note would stay for each result that was ready when it was asked for.
        if not self._finished.empty():
            self._finished.get()
        return number

    def _find_finished(self) -> int | None:
        for number, task in self._tasks.items():
            if task.is_done:
                return number
            if self._in_order:
                return None
        return None

    def close(self, wait_secs: float | None = None) -> bool:
        """Drop what has not started, and wait for what the threads are doing. Safe to call twice.

        Args:
          wait_secs: how long to wait at the most; without it as long as it takes.

        Returns:
          Whether the threads have ended.
        """
        self._is_at_end, self._items_error = True, None
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        # Wakes a thread that waits for a result.
        self._finished.put(None)
        return self._threads.close(wait_secs)

    def abandon(self) -> None:
        """Tell the threads to end, as a finalizer may: without waiting, without a lock."""
        self._threads.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""A map over workers that keeps the order, is bounded, and leaves no thread behind."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from penstock.readers._pool import WorkerProcesses, WorkerThreads, result_of

Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Generic[Item, Result]):
    """Yield `function(item)` for each item, computed ahead by workers, in the items' order.

    Args:
      function: runs in threads of this map, or in the calling one.
      items: taken in the calling thread only, never more than `num_ahead` beyond the result
        returned last.
      num_workers: threads; 0 computes in the calling thread.
      num_ahead: results that may wait; the bound on memory.
      processes: call their own function in place of threads; they are not ended with the map.

    >>> with OrderedMap(str, iter(range(3)), num_workers=2, num_ahead=4) as results:
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
    ) -> None:
        """Start no worker yet: they start with the first result asked for."""
        self._function, self._items = function, items
        self._num_ahead = max(1, num_ahead)
        self._waiting: deque[Future[Any]] = deque()
        self._computes_here = num_workers == 0 and processes is None
        self._threads = WorkerThreads(function, num_workers)
        self._workers = processes or self._threads
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Result]:
        """Return the map itself."""
        return self

    def __next__(self) -> Result:
        """Return the next result."""
        if self._computes_here:
            return self._function(next(self._items))
        while len(self._waiting) < self._num_ahead:
            try:
                item = next(self._items)
            except StopIteration:
                break
            self._waiting.append(self._workers.submit(item))
        if not self._waiting:
            raise StopIteration
        return result_of(self._waiting.popleft())

    def close(self) -> None:
        """Drop what has not started, end the threads with what they do. Safe to call twice."""
        with self._lock:
            self._items = iter(())
            for future in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._threads.close()

    def abandon(self) -> None:
        """Tell the threads to end, as a finalizer may: without waiting, without a lock."""
        self._threads.abandon()

    def __enter__(self) -> "OrderedMap[Item, Result]":
        """Return the map."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the map."""
        self.close()

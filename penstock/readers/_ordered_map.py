"""A map over workers that keeps the order, is bounded, and leaves no worker behind."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, Generic, TypeVar

from penstock.readers._pool import Workers, start_pool

Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Generic[Item, Result]):
    """Yield `function(item)` for each item, computed ahead by workers, in the items' order.

    Args:
      function: runs in the workers; what it raises is raised at its item's turn. It is sent to a
        process once.
      items: taken in the calling thread only, never more than `num_ahead` beyond the result
        returned last.
      num_workers: 0 computes in the calling thread.
      num_ahead: results that may wait; the bound on memory.
      workers: threads, or processes, to which items and results are pickled.

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
        workers: Workers = "thread",
    ) -> None:
        """Start no worker yet: they start with the first result asked for."""
        self._function, self._items = function, items
        self._num_ahead = max(1, num_ahead)
        self._waiting: deque[Future[Result]] = deque()
        self._num_workers, self._workers = num_workers, workers
        self._pool: Executor | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Result]:
        """Return the map itself."""
        return self

    def __next__(self) -> Result:
        """Return the next result."""
        if not self._num_workers:
            return self._function(next(self._items))
        while len(self._waiting) < self._num_ahead:
            try:
                item = next(self._items)
            except StopIteration:
                break
            self._waiting.append(self._submit(item))
        if not self._waiting:
            raise StopIteration
        return self._waiting.popleft().result()

    def _submit(self, item: Item) -> "Future[Result]":
        if self._pool is None:
            self._pool = start_pool(
                self._workers, self._num_workers, _set_up_process, self._function
            )
        function = _call_in_process if self._workers == "process" else self._function
        return self._pool.submit(function, item)

    def close(self) -> None:
        """Drop what has not started, wait for what has, end the workers. Safe to call twice."""
        with self._lock:
            self._items = iter(())
            self._waiting.clear()
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None

    def __enter__(self) -> "OrderedMap[Item, Result]":
        """Return the map."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the map."""
        self.close()


# A worker process keeps its function here: pickled once a process, not once an item.
_IN_PROCESS: dict[str, Callable[[Any], Any]] = {}


def _set_up_process(function: Callable[[Any], Any]) -> None:
    _IN_PROCESS["function"] = function


def _call_in_process(item: Any) -> Any:
    return _IN_PROCESS["function"](item)

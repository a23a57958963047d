"""A map over threads that keeps the order, is bounded, and leaves no thread behind."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Generic[Item, Result]):
    """Yield `function(item)` for each item, computed ahead in threads, in the items' order.

    Args:
      function: runs in the threads; what it raises is raised at its item's turn.
      items: taken in the calling thread only, never more than `num_ahead` beyond the result
        returned last.
      num_threads: 0 computes in the calling thread.
      num_ahead: results that may wait; the bound on memory.

    >>> with OrderedMap(str, iter(range(3)), num_threads=2, num_ahead=4) as results:
    ...     list(results)
    ['0', '1', '2']
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Iterator[Item],
        *,
        num_threads: int,
        num_ahead: int,
    ) -> None:
        """Start no thread yet: they start with the first result asked for."""
        self._function, self._items = function, items
        self._num_ahead = max(1, num_ahead)
        self._waiting: deque[Future[Result]] = deque()
        self._pool = ThreadPoolExecutor(num_threads, "penstock-reader") if num_threads else None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Result]:
        """Return the map itself."""
        return self

    def __next__(self) -> Result:
        """Return the next result."""
        if self._pool is None:
            return self._function(next(self._items))
        while len(self._waiting) < self._num_ahead:
            try:
                item = next(self._items)
            except StopIteration:
                break
            self._waiting.append(self._pool.submit(self._function, item))
        if not self._waiting:
            raise StopIteration
        return self._waiting.popleft().result()

    def close(self) -> None:
        """Drop what has not started, wait for what has, end the threads. Safe to call twice."""
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

"""The engine that reads ahead: one map over threads or processes, for all that work ahead.

`xmap_readers` maps samples with it, `buffered` reads its source in one thread, and the readers of
records decode pieces of batches. They differ in what an item is and in what a position means.
"""

from __future__ import annotations

import atexit
import math
import pickle
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from penstock._errors import check_known
from penstock._parent_watch import end_with_parent
from penstock.readers._errors import note

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


Workers = Literal["thread", "process"]
Item = TypeVar("Item")
Result = TypeVar("Result")

# How long closing waits for a source that does not answer: an interrupted run must end.
STALL_SECS = 5.0
_PROCESS_ENDED = (
    "a worker process ended, and what it said is on stderr. It needs functions that it can "
    'import (none of a notebook), `if __name__ == "__main__":` in the script, and memory'
)


def check_workers(thing: str, workers: str, travellers: Mapping[str, object]) -> None:
    """Check the kind of workers, and that what is sent to processes can be pickled."""
    why = "Threads suit what releases the GIL (opencv, numpy), processes plain Python."
    check_known(f"{thing}(workers)", workers, get_args(Workers), why, ValueError)
    if workers == "process":
        for name, value in travellers.items():
            try:
                pickle.dumps(value)
            except Exception as error:
                raise TypeError(
                    f"{thing}(workers='process') got {name}={value!r}, expected something that can "
                    "be pickled. It is sent to worker processes. Define it at the top level of a "
                    "module, or use workers='thread'."
                ) from error


class Task(Generic[Item, Result]):
    """One item, and what a worker makes of it; `finished` gets `None` when that is there."""

    __slots__ = ("_finished", "_result", "error", "future", "is_done", "item")

    def __init__(self, item: Item, finished: SimpleQueue[None]) -> None:
        self.item: Item | None = item
        self.is_done = False
        self.error: BaseException | None = None
        self.future: Future[Result] | None = None  # of a process
        self._result: Result | None = None
        self._finished = finished

    def finish(self, result: Result | None, error: BaseException | None) -> None:
        # `is_done` is set last: whoever sees it reads the result without a lock.
        self.item, self._result, self.error, self.is_done = None, result, error, True
        self._finished.put(None)

    def finish_by(self, future: Future[Result]) -> None:
        # Nothing is raised here: a traceback would hold the frame that cancels, and with it the
        # reader and its processes.
        if future.cancelled():
            self.finish(None, CancelledError())
            return
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            note(error, _PROCESS_ENDED)
        self.finish(future.result() if error is None else None, error)

    def cancel(self) -> None:
        """Drop the task if a process has not begun it; threads drop all of theirs at once."""
        if self.future is not None:
            self.future.cancel()

    def get_result(self) -> Result:
        """Return the result, or raise what was raised in its place; once."""
        error, self.error = self.error, None
        if error is None:
            return cast(Result, self._result)
        try:
            raise error
        finally:
            # Its traceback holds this frame: a cycle would keep the threads alive.
            del error


class WorkerThreads(Generic[Item, Result]):
    """Threads that call one function; they start with the first tasks and end with `close`.

    Not those of `concurrent.futures`: they are no daemons, so that a source that never answers
    would keep a program from ending, and a task costs twice as much (11 us against 6 of
    `xmap_readers`, Python 3.11).
    """

    def __init__(self, function: Callable[[Item], Result], num_workers: int) -> None:
        self._function, self._num_workers = function, num_workers
        self._inbox: _Inbox[Item, Result] = _Inbox()
        self._threads: list[threading.Thread] = []

    def submit(self, task: Task[Item, Result]) -> None:
        if len(self._threads) < self._num_workers:
            # Without `self`: a thread must not keep an iterator alive that was dropped.
            thread = threading.Thread(
                target=_work,
                args=(self._inbox, self._function),
                name="penstock-reader",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)
            _RUNNING.add(self)
        self._inbox.tasks.put(task)

    def close(self, wait_secs: float | None = None) -> bool:
        """Drop what has not started, and return whether the threads have ended. Safe to call twice.

        Each is waited for, without `wait_secs` as long as it takes.
        """
        self._inbox.close()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(wait_secs)
        return not any(thread.is_alive() for thread in threads)

    def abandon(self) -> None:
        """Drop what has not started, and let the threads end. Waits for nothing, takes no lock."""
        self._inbox.close()


class _Inbox(Generic[Item, Result]):
    """The tasks of some threads, the oldest first. `None` ends them, one after another."""

    def __init__(self) -> None:
        # A SimpleQueue may be put into wherever a finalizer runs, also within its own `put`.
        self.tasks: SimpleQueue[Task[Item, Result] | None] = SimpleQueue()
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self.tasks.put(None)


def _work(inbox: _Inbox[Item, Result], function: Callable[[Item], Result]) -> None:
    while (task := inbox.tasks.get()) is not None:
        if inbox.is_closed:
            # For a thread that still waits for it.
            task.finish(None, CancelledError())
            continue
        try:
            task.finish(function(cast(Item, task.item)), None)
        except BaseException as error:
            task.finish(None, error)
        # While this thread waits for the next one, it must not hold a result that is the reader's.
        del task
    # For the next one, and for a thread that is starting just now.
    inbox.tasks.put(None)


# Threads that may be running. They are ended before the interpreter takes its modules apart, which
# opencv and numpy may still be using in them.
_RUNNING: weakref.WeakSet[WorkerThreads[Any, Any]] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    running = list(_RUNNING)
    for threads in running:
        threads.abandon()
    ends_at = time.monotonic() + STALL_SECS
    for threads in running:
        threads.close(max(0.0, ends_at - time.monotonic()))


class WorkerProcesses:
    """Processes that call one function. A reader keeps them from pass to pass.

    Each first imports penstock and JAX, which takes about a second, and gets the function once.
    They start with the first task and end with `close`, with the last reference to this object, or
    when the process that started them is killed.

    They are spawned, not forked: JAX and opencv hold threads and locks that do not survive a fork.
    A script that uses them needs `if __name__ == "__main__":`.
    """

    def __init__(self, function: Callable[..., object], num_workers: int) -> None:
        self._function, self._num_workers = function, num_workers
        self._lock = threading.Lock()
        # No finalizer shuts it down: the collector may run one in a thread that is just starting,
        # where waiting deadlocks. An executor that nobody holds ends its processes by itself.
        self._executor: Executor | None = None

    def submit(self, task: Task[Any, Any]) -> None:
        with self._lock:
            try:
                task.future = self._get_executor().submit(_call_in_process, task.item)
            # A process died in an earlier pass, which has said so.
            except BrokenExecutor:
                self._stop()
                task.future = self._get_executor().submit(_call_in_process, task.item)
        task.future.add_done_callback(task.finish_by)

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _get_executor(self) -> Executor:
        if self._executor is None:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            context = multiprocessing.get_context("spawn")
            argument = (self._function,)
            self._executor = ProcessPoolExecutor(
                self._num_workers, context, _set_up_process, argument
            )
        return self._executor

    def _stop(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)


# A worker process keeps its function here: pickled once a process, not once an item.
_IN_PROCESS: dict[str, Callable[[object], object]] = {}


def _set_up_process(function: Callable[[object], object]) -> None:
    end_with_parent()
    _IN_PROCESS["function"] = function


def _call_in_process(item: object) -> object:
    try:
        return _IN_PROCESS["function"](item)
    except Exception as error:
        raise make_portable(error) from None


def make_portable(error: Exception) -> Exception:
    """Return an error as it can travel from a worker process; elsewhere return it as it is.

    Its traceback cannot travel, and goes along as a note. An error that cannot be rebuilt from its
    `args` would break the pool and not only end the pass: a `RuntimeError` has its text.
    """
    if not _IN_PROCESS:
        return error
    note(error, "".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        portable = RuntimeError(f"{type(error).__name__}, which cannot be pickled: {error}")
        for line in error.__notes__:
            note(portable, line)
        return portable
    return error


class ParallelMap(Generic[Item, Result]):
    """Yield `function(item)` for each item, computed ahead by workers.

    Args:
      function: runs in threads of this map, or in the calling thread.
      items: read by the calling thread only, never more than `num_ahead` beyond the results that
        were returned. What it raises is raised after the results of the items before it.
      num_workers: threads; 0 computes in the calling thread.
      num_ahead: bound on the items that are waiting, in work or done.
      num_at_first: the bound before the first result, which then rises with each. Who takes one
        item and compiles is not slowed down by workers that fill the memory meanwhile.
      processes: call their own function in place of threads; they outlive the map.
      in_order: return results in the order of the items, else as they are ready.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Iterator[Item],
        *,
        num_workers: int,
        num_ahead: int,
        num_at_first: int | None = None,
        processes: WorkerProcesses | None = None,
        in_order: bool = True,
    ) -> None:
        self._function, self._items = function, items
        self.num_ahead, self._in_order = max(1, num_ahead), in_order
        self._num_allowed = math.inf if num_at_first is None else num_at_first
        self._computes_here = num_workers == 0 and processes is None
        # Also where processes work: threads start with their first task, so that unused ones cost
        # nothing.
        self._threads = WorkerThreads(function, num_workers)
        self._workers = processes or self._threads
        self._num_taken = 0
        self._tasks: dict[int, Task[Item, Result]] = {}  # by number, the oldest first
        self._finished: SimpleQueue[None] = SimpleQueue()
        self._is_at_end = self._is_closed = False
        self._items_error: Exception | None = None

    def __next__(self) -> Result:
        return self.take()[1]

    def take(self) -> tuple[int, Result]:
        """Return the number of an item, counted from 0, and its result."""
        if self._computes_here:
            item = next(self._items)
            self._num_taken += 1
            return self._num_taken - 1, self._function(item)
        self._submit_ahead()
        number = self._wait()
        # Only now, when nothing can interrupt the wait any more: Ctrl-C must lose no result.
        task = self._tasks.pop(number, None)
        if task is None:  # closed since
            raise StopIteration
        self._num_allowed += 1
        return number, task.get_result()

    def _submit_ahead(self) -> None:
        while len(self._tasks) < min(self.num_ahead, self._num_allowed) and not self._is_at_end:
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
        # Else a note would stay for each result that was ready when it was asked for.
        if not self._finished.empty():
            self._finished.get()
        return number

    def _find_finished(self) -> int | None:
        # By another thread: what was submitted since may never be finished.
        if self._is_closed:
            raise StopIteration
        for number, task in self._tasks.items():
            if task.is_done:
                return number
            if self._in_order:
                return None
        return None

    def close(self, wait_secs: float | None = None) -> bool:
        """Drop what has not started, and return whether the threads have ended, as theirs does."""
        self._is_at_end, self._items_error = True, None
        # Another dict: a thread may be looking through this one.
        tasks, self._tasks, self._is_closed = self._tasks, {}, True
        for task in tasks.values():
            task.cancel()
        # Wakes a thread that waits for a result.
        self._finished.put(None)
        return self._threads.close(wait_secs)

    def abandon(self) -> None:
        """Tell the threads to end, as a finalizer may: without waiting, without a lock."""
        self._threads.abandon()

"""Workers: threads of a pass, and processes that a reader keeps from pass to pass."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock._errors import message
from penstock.readers._errors import note
from penstock.readers._parent_watch import end_with_parent

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Workers = Literal["thread", "process"]


def num_usable_cores() -> int:
    """Return the number of cores this process may run on; macOS knows only how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_workers(thing: str, workers: str, travellers: Mapping[str, Any]) -> None:
    """Check the kind of workers, and that what goes to processes, by its name, can be sent there.

    Raises:
      ValueError: an unknown kind.
      TypeError: processes, and something that cannot be pickled.

    >>> check_workers("xmap_readers", "process", {"mapper": len})
    """
    if workers not in get_args(Workers):
        raise ValueError(
            message(
                f"{thing}(workers)",
                repr(workers),
                "'thread' or 'process'",
                "Threads suit what releases the GIL (opencv, numpy), processes plain Python",
                "Pass workers='thread'",
            )
        )
    if workers == "process":
        for name, one in travellers.items():
            try:
                pickle.dumps(one)
            except Exception as error:
                raise TypeError(
                    message(
                        f"{thing}(workers='process')",
                        f"{name}={one!r}",
                        "something that can be pickled",
                        "It is sent to worker processes",
                        "Define it at the top level of a module, or use workers='thread'",
                    )
                ) from error


class WorkerThreads:
    """Threads that call one function; they start with the first item and end with `close`.

    >>> threads = WorkerThreads(abs, 2)
    >>> threads.submit(-3).result()
    3
    >>> threads.close()
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int) -> None:
        """Start nothing yet."""
        self._function, self._num_workers = function, num_workers
        self._abandoned = _Abandoned()
        self._executor: Executor | None = None

    def submit(self, item: Any) -> Future[Any]:
        """Return the future of `function(item)`."""
        if self._executor is None:
            # Imported here: `import penstock` starts no pool, and these cost it 3 ms.
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._num_workers, "penstock-reader")
        return self._executor.submit(_call_if_wanted, self._abandoned, self._function, item)

    def close(self) -> None:
        """Drop what has not started, wait for what has, end the threads. Safe to call twice."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def abandon(self) -> None:
        """Drop what has not started; the threads end when this is freed. Waits for nothing.

        Takes no lock either, as cancelling futures would: finalizers call it.
        """
        self._abandoned.is_so = True


class _Abandoned:
    """Whether nobody waits for results any more."""

    is_so = False


def _call_if_wanted(abandoned: _Abandoned, function: Callable[[Any], Any], item: Any) -> Any:
    return None if abandoned.is_so else function(item)


class WorkerProcesses:
    """Processes that call one function: of a reader, which keeps them from pass to pass.

    Each begins with importing penstock and JAX, about a second of a core, and is sent the function
    once. They start with the first item and end with `close`, when nobody holds this any more, or
    when the process that started them is killed.

    They are spawned, not forked: JAX and opencv hold threads and locks that do not survive a fork.
    A script that uses them needs `if __name__ == "__main__":`.
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int) -> None:
        """Start nothing yet."""
        self._function, self._num_workers = function, num_workers
        self._lock = threading.Lock()
        # Without a finalizer that shuts it down: the collector may run one in a thread that is just
        # starting, where waiting deadlocks. An executor nobody holds ends its processes by itself.
        self._executor: Executor | None = None

    def submit(self, item: Any) -> Future[Any]:
        """Return the future of `function(item)`; item and result are pickled."""
        with self._lock:
            try:
                return self._started().submit(_call_in_process, item)
            except BrokenExecutor:  # one died in an earlier pass, which said so
                self._stop()
                return self._started().submit(_call_in_process, item)

    def close(self) -> None:
        """End the processes; the next item starts them anew. Safe to call twice."""
        with self._lock:
            self._stop()

    def _started(self) -> Executor:
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


def result_of(future: Future[Any]) -> Any:
    """Return a future's result.

    Raises:
      BrokenExecutor: a worker process ended; a note says what usually ends one.
    """
    try:
        return future.result()
    except BrokenExecutor as error:
        note(
            error,
            "a worker process ended, and what it said is on stderr. It needs functions that it can "
            'import (none of a notebook), `if __name__ == "__main__":` in the script, and memory',
        )
        raise


def portable(error: Exception) -> Exception:
    """Return the error if it survives the way to another process, else one that tells of it.

    One that cannot be made again from its `args` would end the pool in place of the pass.

    >>> portable(KeyError("x"))
    KeyError('x')
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        other = RuntimeError(f"{type(error).__name__}, which cannot be pickled: {error}")
        for line in getattr(error, "__notes__", ()):
            note(other, line)
        return other
    return error


# A worker process keeps its function here: pickled once a process, not once an item.
_IN_PROCESS: dict[str, Callable[[Any], Any]] = {}


def _set_up_process(function: Callable[[Any], Any]) -> None:
    end_with_parent()
    _IN_PROCESS["function"] = function


def _call_in_process(item: Any) -> Any:
    try:
        return _IN_PROCESS["function"](item)
    except Exception as error:
        sent = portable(error)
        if sent is error:
            raise
        raise sent from error

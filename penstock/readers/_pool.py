"""Worker pools: threads, or processes that are started fresh."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.readers._errors import message

if TYPE_CHECKING:
    from concurrent.futures import Executor

Workers = Literal["thread", "process"]


def num_usable_cores() -> int:
    """Return the number of cores this process may run on; macOS knows only how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_workers(thing: str, workers: str, *travellers: Any) -> None:
    """Check the kind of workers, and that what goes to processes can be sent there.

    Raises:
      ValueError: an unknown kind.
      TypeError: processes, and something that cannot be pickled.

    >>> check_workers("xmap_readers", "process", len)
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
        for one in travellers:
            try:
                pickle.dumps(one)
            except Exception as error:
                raise TypeError(
                    message(
                        f"{thing}(workers='process')",
                        repr(one),
                        "something that can be pickled",
                        "It is sent to worker processes",
                        "Define it at the top level of a module, or use workers='thread'",
                    )
                ) from error


def start_pool(
    workers: str,
    num_workers: int,
    setup: Callable[[Any], None] | None = None,
    argument: Any = None,
) -> Executor:
    """Start a pool; the caller ends it with `shutdown(wait=True, cancel_futures=True)`.

    Processes are spawned, not forked: JAX and opencv hold threads and locks that do not
    survive a fork. A script that uses them needs `if __name__ == "__main__":`. Each process
    begins with `setup(argument)`; threads do not.
    """
    # Imported here: `import penstock` starts no pool, and these cost it 3 ms.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    if workers == "process":
        context = multiprocessing.get_context("spawn")
        if setup is None:
            return ProcessPoolExecutor(num_workers, context)
        return ProcessPoolExecutor(num_workers, context, setup, (argument,))
    return ThreadPoolExecutor(num_workers, "penstock-reader")

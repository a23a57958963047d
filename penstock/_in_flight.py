"""Steps that were launched and may not be done: bounded in number, watched for losses gone bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

T = TypeVar("T")

MAX_STEPS_IN_FLIGHT = 8
CHECK_EVERY = 64


def max_in_flight(mesh: Mesh) -> int:
    """Return how many launches may be unfinished at a time.

    Several CPU devices share the machine's threads: with two executions in flight each can hold
    threads the other's all-reduce waits for, which aborts the process after 40 s. So there each
    launch is waited for.
    """
    is_virtual = mesh.devices.flat[0].platform == "cpu" and mesh.size > 1
    return 0 if is_virtual else MAX_STEPS_IN_FLIGHT


class InFlight:
    """A queue of the flags that launches return.

    Waiting for the flag of a launch eight launches back keeps the host from running away with
    batches in device memory, and hardly ever waits. A flag that has arrived costs nothing to read;
    one in 64 and the last of each epoch are read, so that a loss gone bad is noticed soon and
    without a synchronisation.

    Arguments:
      on_bad: called with the number of the update whose loss was not finite.
    """

    def __init__(self, mesh: Mesh, on_bad: Callable[[int], Any]) -> None:
        self._limit = max_in_flight(mesh)
        self._on_bad = on_bad
        self._flags: deque[jax.Array] = deque()
        self._epoch_ends: deque[jax.Array] = deque()
        self._num_done = 0

    def push(self, flag: jax.Array) -> None:
        """Add a launch; wait for the oldest when there are too many."""
        self._flags.append(flag)
        if len(self._flags) > self._limit:
            oldest = self._flags.popleft()
            oldest.block_until_ready()
            self._num_done += 1
            is_epoch_end = bool(self._epoch_ends) and oldest is self._epoch_ends[0]
            if is_epoch_end:
                self._epoch_ends.popleft()
            if is_epoch_end or self._num_done % CHECK_EVERY == 0:
                self._check(oldest)

    def end_epoch(self) -> None:
        """Have the flag of the newest launch read when it arrives."""
        if self._flags:
            self._epoch_ends.append(self._flags[-1])

    def drain(self) -> None:
        """Wait for every launch and read the flags that count."""
        ends = list(self._epoch_ends) + ([self._flags[-1]] if self._flags else [])
        self._flags.clear()
        self._epoch_ends.clear()
        for flag in ends:
            self._check(flag)

    def _check(self, flag: jax.Array) -> None:
        number = int(jax.device_get(flag))
        if number >= 0:
            self._on_bad(number)


def look_ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield items with the next `depth` already taken from the source.

    With placed batches their transfer runs while the device computes. An exception of the source
    is raised when its turn comes, after the items before it.
    """
    iterator, queue = iter(items), deque[T]()
    error: Exception | None = None
    is_open = True
    while True:
        while is_open and len(queue) <= depth:
            try:
                queue.append(next(iterator))
            except StopIteration:
                is_open = False
            except Exception as raised:
                error, is_open = raised, False
        if queue:
            yield queue.popleft()
        elif error is not None:
            raise error
        else:
            return

"""Steps that were launched and may not be done: bounded in number, watched for losses gone bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
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
    """A queue of the flags that launches return; a flag is finite while every loss was.

    Waiting for the flag of a launch eight launches back keeps the host from running away with
    batches in device memory, and hardly ever waits. A flag that has arrived costs little to read;
    one in 64 and the last of each epoch are read, so that a loss gone bad is noticed soon and
    without a synchronisation.

    Arguments:
      on_bad: called with the range of global steps, first and last, in which a loss was not finite.
    """

    def __init__(self, mesh: Mesh, on_bad: Callable[[int, int], Any], first_step: int) -> None:
        self._limit = max_in_flight(mesh)
        self._on_bad = on_bad
        self._first_step = first_step
        self._queue: deque[tuple[jax.Array, int]] = deque()
        self._arrived: tuple[jax.Array, int] | None = None  # the newest that was waited for, unread
        self._num_unread = 0
        self._epoch_ends: set[int] = set()

    def push(self, flag: jax.Array, end_step: int) -> None:
        """Add a launch that ends before global step `end_step`; wait for the oldest if need be."""
        queue = self._queue
        queue.append((flag, end_step))
        if len(queue) > self._limit:
            oldest, step = queue.popleft()
            oldest.block_until_ready()
            self._num_unread += 1
            self._arrived = (oldest, step)
            if self._num_unread >= CHECK_EVERY or step in self._epoch_ends:
                self._check(oldest, step)

    def end_epoch(self) -> None:
        """Have the flag of the newest launch read when it arrives: the next one starts anew."""
        if self._queue:
            self._epoch_ends.add(self._queue[-1][1])
        elif self._arrived is not None:  # every launch is waited for, so this is the newest
            self._check(*self._arrived)

    def drain(self) -> None:
        """Wait for every launch and read the flags that count."""
        queue, self._queue = self._queue, deque()
        if not queue and self._arrived is not None:
            self._check(*self._arrived)
        for number, (flag, step) in enumerate(queue):
            if step in self._epoch_ends or number == len(queue) - 1:
                self._check(flag, step)

    def _check(self, flag: jax.Array, end_step: int) -> None:
        self._num_unread, self._arrived = 0, None
        self._epoch_ends.discard(end_step)
        if not np.isfinite(jax.device_get(flag)):
            self._on_bad(self._first_step, end_step - 1)
        self._first_step = end_step


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

"""Steps that were launched and may not be done: bounded in number, watched for losses gone bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from penstock import _mesh
from penstock.distributed.group import Group

T = TypeVar("T")

# JAX itself blocks at 32 on a CPU, and a host that it wakes for every step takes a core from the
# step: an MLP ran at 1.03x the hand-written loop's time with a bound of 32, at 0.94x below it.
MAX_STEPS_IN_FLIGHT = 12
MAX_ON_ACCELERATOR = 8
STRIDE = 12
STRIDE_ON_ACCELERATOR = 4
CHECK_EVERY = 120


def max_in_flight(mesh: Mesh) -> int:
    """Return how many launches may be unfinished at a time.

    On an accelerator each holds its batch in device memory. On one CPU device the bound stays, with
    the stride on top, below the 32 at which JAX itself blocks: 0.94x the time a step of a small
    network, because the host then works in bursts and leaves both cores to the steps between them.
    Several CPU devices share the machine's threads: with two executions in flight each can hold
    threads the other's all-reduce waits for, which aborts the process after 40 s. So there each
    launch is waited for.
    """
    if not _mesh.is_on_cpu(mesh):
        return MAX_ON_ACCELERATOR
    return 0 if mesh.size > 1 else MAX_STEPS_IN_FLIGHT


class InFlight:
    """A queue of the flags that launches return; a flag is finite while every loss was.

    Waiting for the flag of a launch some launches back keeps the host from running away with
    batches in device memory, and hardly ever waits. A flag that has arrived costs little to read;
    one in 120 and the last of each epoch are read, so that a loss gone bad is noticed soon and
    without a synchronisation.

    Arguments:
      check: called with a flag on the host and the range of global steps, first and last, that it
        stands for.
      add_health: called after a launch with its flag, if that will be read; returns what to read in
        its place, an array on the devices that says more.
    """

    def __init__(
        self,
        mesh: Mesh,
        check: Callable[[np.ndarray, int, int], object],
        first_step: int,
        add_health: Callable[[jax.Array], jax.Array] = lambda flag: flag,
    ) -> None:
        self._limit = max_in_flight(mesh)
        # Where every launch is waited for, each has a flag.
        self._stride = min(
            STRIDE if _mesh.is_on_cpu(mesh) else STRIDE_ON_ACCELERATOR, self._limit + 1
        )
        self._check_flag, self._add_health = check, add_health
        self._first_step = first_step
        self._queue: deque[tuple[Any, int, int, bool]] = deque()
        self._num_queued = 0  # launches that the flags in the queue stand for
        self._num_pushed = 0  # launches since the last of them
        self._num_unread = 0  # launches since the last flag that is read
        self._newest: tuple[Any, int] | None = None

    def push(self, flag: jax.Array, end_step: int) -> None:
        """Add a launch that ends before global step `end_step`; wait for the oldest if need be.

        A flag stands for all launches before it, so one in `STRIDE` is kept: each costs 4 us.
        """
        self._newest = (flag, end_step)
        self._num_pushed += 1
        if self._num_pushed >= self._stride:
            self._keep(is_read=self._num_unread + self._num_pushed >= CHECK_EVERY)

    def end_epoch(self) -> None:
        """Have the newest flag read when it arrives, so that no flag spans two epochs."""
        self._keep(is_read=True)
        self._newest = None

    def drain(self) -> None:
        """Wait for every launch and read the flags that count."""
        self.end_epoch()
        while self._queue:
            self._arrive(is_waiting=False)

    def forget(self, next_step: int) -> None:
        """Drop the flags of launches whose state was given up; `next_step` is launched next."""
        self._queue.clear()
        self._num_queued = self._num_pushed = self._num_unread = 0
        self._newest, self._first_step = None, next_step

    def is_idle(self) -> bool:
        return self._newest is None or self._newest[0].is_ready()

    def _keep(self, *, is_read: bool) -> None:
        if self._newest is None:
            return
        flag, end_step = self._newest
        if is_read:
            flag = self._add_health(flag)
        self._queue.append((flag, end_step, self._num_pushed, is_read))
        # A flag stands for those before it, so the bound is on launches and not on flags.
        self._num_queued += self._num_pushed
        self._num_unread = 0 if is_read else self._num_unread + self._num_pushed
        self._num_pushed = 0
        while self._num_queued > self._limit:
            self._arrive(is_waiting=True)

    def _arrive(self, *, is_waiting: bool) -> None:
        flag, end_step, num_launches, is_read = self._queue.popleft()
        self._num_queued -= num_launches
        if is_waiting and not flag.is_ready():
            flag.block_until_ready()
        if is_read:
            first, self._first_step = self._first_step, end_step
            self._check_flag(jax.device_get(flag), first, end_step - 1)


def look_ahead(items: Iterable[T], depth: int, group: Group) -> Iterator[T]:
    """Yield items with the next `depth` already taken from the source.

    With placed batches their transfer runs while the device computes. An exception of the source
    is raised when its turn comes, after the items before it; of several processes at once, since
    others may wait for what this one would first have to launch with them.
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
            # Kept: the items before it were read in good order and are yielded first.
            except Exception as raised:
                if group.count > 1:
                    raise
                error, is_open = raised, False
        if queue:
            yield queue.popleft()
        elif error is not None:
            raise error
        else:
            return

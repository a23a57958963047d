"""Launches that may not be done: bounded in number, and watched for losses gone bad."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NoReturn, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from penstock import _mesh, _metrics
from penstock._errors import NonFiniteError, listed
from penstock._tracing.probe import Probe
from penstock.distributed.group import Group
from penstock.program_builder.engine import Engine
from penstock.trainer._saver import Saver, Status

_LOGGER = logging.getLogger("penstock")

T = TypeVar("T")

# JAX itself blocks at 32 on a CPU, and a host that it wakes for every step takes a core from the
# step: an MLP ran at 1.03x the hand-written loop's time with a bound of 32, at 0.94x below it.
MAX_STEPS_IN_FLIGHT = 12
MAX_ON_ACCELERATOR = 8
STRIDE = 12
STRIDE_ON_ACCELERATOR = 4
CHECK_EVERY = 120

LOOK_AHEAD = 2
"""Batches on the devices beyond the one that runs; more only costs memory."""

OnNonFinite = Literal["stop", "skip", "roll_back"]

MAX_ROLL_BACKS = 10
"""Roll-backs in one call of `train`; a run that needs more is not getting anywhere."""

MIN_STEPS_LOST = 10
"""Steps in a row of which everything was skipped, after which a run that skips is given up."""

_ADVICE = (
    "Look for an id or a label out of range (they give nan), the log of zero or a division by "
    "zero; else lower the learning rate, or clip gradients (optax.clip_by_global_norm). "
    "trainer.replay(reader) runs the step again and shows the line, the id or the label; "
    "Trainer(..., on_non_finite='skip') leaves such updates out."
)


def max_in_flight(mesh: Mesh) -> int:
    """Return how many launches may be unfinished at a time.

    On an accelerator each holds its batch in device memory. On one CPU device the bound, with the
    stride, stays below the 32 at which JAX itself blocks: the host then works in bursts. Several
    CPU devices share threads, and two executions in flight can deadlock: each is waited for.
    """
    if not _mesh.is_on_cpu(mesh):
        return MAX_ON_ACCELERATOR
    return 0 if mesh.size > 1 else MAX_STEPS_IN_FLIGHT


class InFlight:
    """The launches of one run, whose flags are finite while every loss was.

    Waiting for the flag of a launch some launches back keeps the host from running away with
    batches in device memory, and hardly ever waits. One flag in 120 and the last of each epoch are
    read, so that a loss gone bad is noticed soon and without a synchronisation.
    """

    def __init__(self, engine: Engine, status: Status, saver: Saver, action: OnNonFinite) -> None:
        self._engine, self._programs = engine, engine.programs
        self._status, self._saver = status, saver
        self._action, self._num_updates = action, len(engine.update_order)
        mesh = engine.programs.mesh
        self._limit = max_in_flight(mesh)
        # Where every launch is waited for, each has a flag.
        stride = STRIDE if _mesh.is_on_cpu(mesh) else STRIDE_ON_ACCELERATOR
        self._stride = min(stride, self._limit + 1)
        self._num_roll_backs = self._num_skipped = 0
        if action == "skip":
            self._num_skipped = int(jax.device_get(engine.state.num_skipped))
        self._lost_since: int | None = None
        self._queue: deque[tuple[Any, int, int, bool]] = deque()
        self._forget()

    def _forget(self) -> None:
        """Drop the flags of launches whose state was given up."""
        self._queue.clear()
        self._num_queued = 0  # launches that the flags in the queue stand for
        self._num_pushed = 0  # launches since the last of them
        self._num_unread = 0  # launches since the last flag that is read
        self._newest: tuple[Any, int] | None = None
        self._first_step = self._first_kept_step = self._status.global_step

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
        self.end_epoch()
        while self._queue:
            self._arrive(is_waiting=False)

    def is_idle(self) -> bool:
        return self._newest is None or self._newest[0].is_ready()

    def _keep(self, *, is_read: bool) -> None:
        if self._newest is None:
            return
        flag, end_step = self._newest
        if is_read and self._action != "skip":
            # The parameters too: a bad gradient reaches the loss one step later, after a checkpoint
            # of it.
            flag = self._engine.health(flag)
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

    def _check_flag(self, flag: np.ndarray, first: int, last: int) -> None:
        where = f"at global step {first}" if first == last else f"in global steps {first} to {last}"
        if self._action == "skip":
            # The flag is `[loss sum, updates skipped]` here, `[loss sum, is healthy]` below.
            self._count_skipped(int(flag[1]), where, first, last)
        elif not np.isfinite(flag[0]):
            self._react(f"a loss that is not finite {where}", first, last)
        elif not flag[1]:  # a gradient of the last step, or of a parameter no loss has seen since
            self._react(f"an update that is not finite {where}", first, last)

    def check_read(self, launched: _metrics.StepValues, first_step: int) -> None:
        """Look at the losses of a launch that a handler has just read; costs no waiting.

        Not on several processes, of which only some may read.
        """
        if self._action == "skip" or self._programs.group.count > 1:
            return
        if first_step < self._first_kept_step:  # its state was given up since
            return
        for k in range(launched.num_steps):
            for name, values in launched.values.items():
                structures = self._programs.structures
                loss = float(np.ravel(values[structures[name].loss_index])[k])
                if not np.isfinite(loss):
                    of = f" of {name!r}" if len(structures) > 1 else ""
                    step = first_step + k
                    self._react(f"a loss{of} of {loss} at global step {step}", step, step)
                    return

    def _count_skipped(self, num_skipped: int, where: str, first: int, last: int) -> None:
        # The device counts from the beginning of the run, this from the last flag.
        new, self._num_skipped = num_skipped - self._num_skipped, num_skipped
        if new:
            self._status.bad_steps = (first, last)
            _LOGGER.warning(
                "%d update%s skipped, a loss or gradient was not finite %s (%d in all)",
                new,
                " was" if new == 1 else "s were",
                where,
                num_skipped,
            )
        # Fewer than all of them: some update got through, and the run is alive.
        if new < (last - first + 1) * self._num_updates:
            self._lost_since = None
            return
        since = self._lost_since = first if self._lost_since is None else self._lost_since
        if last - since + 1 >= MIN_STEPS_LOST:
            self._raise(
                f"no finite loss and gradients in global steps {since} to {last}: every update was "
                "skipped"
            )

    def _react(self, what: str, first: int, last: int) -> None:
        self._status.bad_steps = (first, last)
        if self._action == "stop":
            self._raise(what)
        # Deterministic runs would fail at the same place for ever.
        if self._num_roll_backs == MAX_ROLL_BACKS:
            self._raise(f"{what}, after {MAX_ROLL_BACKS} roll-backs in this call of train")
        self._num_roll_backs += 1
        step = self._saver.roll_back(last)
        if step is None:
            self._raise(f"{what}, with no checkpoint to roll back to")
        # Launches of the given-up state are still in flight, and handlers may read them.
        self._forget()
        _LOGGER.warning(
            "%s: rolled back to the state of global step %d; training goes on with the next batch "
            "(roll-back %d of at most %d)",
            what,
            step,
            self._num_roll_backs,
            MAX_ROLL_BACKS,
        )

    def _raise(self, what: str) -> NoReturn:
        raise NonFiniteError(
            f"Trainer got {what}, expected a finite one. {self._describe_non_finite()}{_ADVICE}"
        )

    def _describe_non_finite(self) -> str:
        """Return which metrics and parameters are not finite; waits for the device."""
        # A launch that failed took the arrays: there is nothing to look at.
        if self._engine.is_lost:
            return ""
        metrics = [
            label
            for name, sums in self._engine.state.metrics.items()
            for label in _list_bad_metrics(
                jax.device_get(sums),
                self._programs.network.train[name],
                f"{name}/" if len(self._engine.state.metrics) > 1 else "",
            )
        ]
        parameters = self._engine.find_non_finite()
        tables = {
            table.layer: table
            for program in self._programs.network.train.values()
            for table in program.lookups
        }
        lookups = "".join(
            f"{layer} looks up ids that the program computes, and gives nan for those outside its "
            f"{table.num_rows} rows. "
            for layer, table in tables.items()
        )
        first = f"Metrics of this epoch that are not finite: {listed(metrics)}. " if metrics else ""
        followed = f"followed in {listed(parameters, 5)}" if parameters else "stayed finite"
        return f"{first}The parameters {followed}. {lookups}"


def _list_bad_metrics(sums: _metrics.Sums, program: Probe, prefix: str) -> list[str]:
    """Return how the metrics are called whose sum is not finite, in the order of the program."""
    # The high halves of the pairs are enough: what is not finite is so in both.
    scalars, arrays = iter(sums.scalars[0]), iter(sums.arrays)
    labels = []
    for item in program.structure.items:
        leaves = _metrics.list_sums(item.shape)
        values = [next(arrays)[0] if x.shape else next(scalars) for x in leaves]
        if not all(np.all(np.isfinite(value)) for value in values):
            labels.append(prefix + ("loss" if item.key is None else str(item.key)))
    return labels


def look_ahead(items: Iterable[T], depth: int, group: Group) -> Iterator[T]:
    """Yield items with the next `depth` already taken from the source.

    An exception of the source is raised when its turn comes; of several processes at once, since
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

"""The one training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from penstock import _batches, _feeding, _metrics
from penstock._data_wait import DataWait
from penstock._errors import NonFiniteError, ReaderError
from penstock._in_flight import InFlight, look_ahead
from penstock._interrupts import Interrupts
from penstock.events import BeginEpoch, BeginStep, EndEpoch, EndStep, Handler
from penstock.program_builder import ProgramBuilder, State
from penstock.trainer._agreement import Agreement
from penstock.trainer._saver import Saver
from penstock.trainer._status import Status

LOOK_AHEAD = 2
"""Batches on the device beyond the one that runs; more only costs memory."""


@dataclasses.dataclass(kw_only=True)
class Loop:
    """What one call of `Trainer.train` runs.

    Arguments:
      check_read: called with the values of a launch that a handler has read, and its first step.
    """

    builder: ProgramBuilder
    status: Status
    reader: Any
    fields: _batches.Fields
    rounds: tuple[str, ...]
    steps_per_call: int
    emit: Handler
    in_flight: InFlight
    waiting: DataWait
    interrupts: Interrupts
    saver: Saver
    agreement: Agreement
    check_read: Callable[[_metrics.LaunchValues, int], None]

    def run(self, end_epoch: int) -> None:
        """Train until `end_epoch` begins, or `stop` is called."""
        while self.status.epoch < end_epoch and not self.status.is_stopping:
            self._run_epoch()
        self.in_flight.drain()
        if self.saver.is_resuming:
            self._leave_reader_at_end()

    def _leave_reader_at_end(self) -> None:
        """Move the reader to the end of its last epoch: this call was over at the checkpoint.

        A later call that reads it again then begins the next epoch, one with another reader anew.
        """
        self.saver.is_resuming = False
        if self.status.reader_state is not None:
            pass_ = _batches.Pass(self.reader, self.fields)
            pass_.go_to(self.status.reader_state, 0)
            pass_.close()

    def _run_epoch(self) -> None:
        """Run one epoch. The order of the lines below is the contract of `penstock.events`."""
        builder, status, emit, interrupts = self.builder, self.status, self.emit, self.interrupts
        epoch, first_step = status.epoch, status.step
        if not first_step:
            # The sums of the last epoch leave the state: EndEpoch may be read at any time.
            status.packed = builder.pack(builder.reset_metrics(builder.unpack(status.packed)))
        status.is_in_epoch = True
        emit(BeginEpoch(epoch, status.global_step, _batches.length_of(self.reader), first_step))
        interrupts.check()
        if status.is_stopping:
            return
        rounds, structures, saver = self.rounds, builder.structures, self.saver
        is_alone = interrupts.is_alone
        # Closed here and not by the collector: a reader's threads must not outlive an exception.
        with contextlib.closing(self.waiting.watched(self._launches())) as launches:
            interrupts.is_open = True  # while the reader is waited for
            for placed in launches:
                interrupts.is_open = False
                counts, first, step = placed.counts, status.global_step, status.step
                is_fetched = []
                for k in range(len(counts)):
                    begin = BeginStep(epoch, step + k, first + k)
                    emit(begin)
                    is_fetched.append(begin.fetch_metrics)
                # The launch takes the old state: no interrupt until the new one is stored.
                interrupts.is_held = True
                try:
                    status.packed, values, flag, rates = builder.launch(
                        status.packed, placed, rounds
                    )
                    status.global_step, status.step = first + len(counts), step + len(counts)
                    status.num_examples += sum(counts)
                    status.reader_state = placed.reader_state
                finally:
                    interrupts.release()
                self.in_flight.push(flag, status.global_step)
                launched = _metrics.LaunchValues(values, structures, counts, rates)
                del values  # with fetch_metrics off nothing keeps them on the device
                for k, count in enumerate(counts):
                    read = functools.partial(launched.at, k) if is_fetched[k] else None
                    rate = functools.partial(launched.rate_at, k) if rates else None
                    emit(EndStep(epoch, step + k, first + k, count, read, rate))
                if launched.is_read:
                    self.check_read(launched, first)
                saver.after_launch(status)
                if interrupts.signal is not None or not is_alone:
                    self._agree()
                if status.is_stopping:
                    return
                interrupts.is_open = True
            interrupts.is_open = False
        self._end_epoch(epoch)

    def _end_epoch(self, epoch: int) -> None:
        status, builder = self.status, self.builder
        if not status.step:
            raise ReaderError(
                f"the reader yielded no batch in epoch {epoch}, expected at least one. Is its data "
                "empty, or is it an iterator that an earlier pass used up?"
            )
        self.in_flight.end_epoch()
        num_steps, num_examples = status.step, status.num_examples
        status.leave_epoch()
        read = functools.partial(_means, builder, builder.unpack(status.packed), epoch)
        wait = self.waiting.end_epoch(epoch)
        self.emit(EndEpoch(epoch, status.global_step, num_steps, num_examples, read, wait))
        self.saver.after_epoch(status)
        self.interrupts.check()

    def _agree(self) -> None:
        """Raise the interrupt that came; on several processes at a step they agree on."""
        self.interrupts.check()
        signal, is_due = self.agreement.reached(self.interrupts.signal, self.saver.is_time())
        if is_due:
            self.saver.save(self.status)
        if signal is not None:
            self.interrupts.agree(signal)

    def _launches(self) -> Iterator[_feeding.Placed]:
        placed = self._placed()
        return placed if self.builder.feeds_ride_along else look_ahead(placed, LOOK_AHEAD)

    def _placed(self) -> Iterator[_feeding.Placed]:
        """Yield the batches of an epoch, `steps_per_call` to a launch, the rest one by one."""
        place, group, states = self.builder.place, [], []
        pass_ = self._opened()
        is_tracked = self.saver.is_tracking
        for batch in pass_:
            state = pass_.state() if is_tracked else None
            if self.steps_per_call == 1:
                placed = place("train", (batch,))
                yield placed._replace(reader_state=state) if is_tracked else placed
                continue
            group.append(batch)
            states.append(state)
            if len(group) == self.steps_per_call:
                yield place("train", group)._replace(reader_state=state)
                group, states = [], []
        for batch, state in zip(group, states, strict=True):
            yield place("train", (batch,))._replace(reader_state=state)

    def _opened(self) -> _batches.Pass:
        """Return a pass over the reader from where training stands in it."""
        if not self.saver.is_resuming:
            return _batches.Pass(self.reader, self.fields)
        self.saver.is_resuming = False
        status = self.status
        return _batches.resumed_pass(self.reader, self.fields, status.reader_state, status.step)


def _means(builder: ProgramBuilder, state: State, epoch: int) -> Any:
    """Return the means of an epoch's metrics; waits for the device.

    Raises:
      NonFiniteError: there is none, since every update was skipped.
    """
    try:
        return builder.mean_metrics(state)
    except ValueError as error:
        raise NonFiniteError(
            f"epoch {epoch} got no finite loss and gradients, expected some: every update was "
            "skipped, and there is no mean of its metrics."
        ) from error

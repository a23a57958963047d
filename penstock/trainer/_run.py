"""One call of `Trainer.train`, from its first event to its last."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from penstock import _batches, _metrics
from penstock._device_batches import DeviceBatch
from penstock._errors import NonFiniteError, ReaderError
from penstock._in_flight import InFlight, look_ahead
from penstock._interrupts import Interrupts
from penstock.events import (
    BeginEpoch,
    BeginStep,
    BeginTraining,
    EndEpoch,
    EndStep,
    EndTraining,
    Handler,
    Metrics,
    Reason,
    Training,
)
from penstock.program_builder import State
from penstock.program_builder.engine import Engine
from penstock.program_builder.programs import Programs
from penstock.trainer._agreement import agree
from penstock.trainer._non_finite import Guard
from penstock.trainer._saver import Saver
from penstock.trainer._shared_batches import (
    Batch,
    OnUnequal,
    SharedBatches,
    agree_on_first,
    check_size,
    make_empty,
)
from penstock.trainer._status import HandlerStates, Status

_LOGGER = logging.getLogger("penstock")

T = TypeVar("T")

LOOK_AHEAD = 2
"""Batches on the device beyond the one that runs; more only costs memory."""

SAMPLE_EVERY = 16
WARN_SHARE = 0.1
WARN_AFTER_SECS = 5.0


class Run:
    """One call of `Trainer.train`.

    Arguments:
      update_order: names of objectives, one for each update of a batch.
      handlers: what the event handlers of a resumed run have kept.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        status: Status,
        reader: _batches.ReaderLike,
        fields: _batches.Fields,
        update_order: tuple[str, ...],
        steps_per_call: int,
        emit: Handler,
        guard: Guard,
        interrupts: Interrupts,
        saver: Saver,
        handlers: HandlerStates,
        on_unequal: OnUnequal,
    ) -> None:
        self.engine, self.status, self.reader, self.fields = engine, status, reader, fields
        self.update_order, self.steps_per_call = update_order, steps_per_call
        self.emit, self.guard, self.saver = emit, guard, saver
        self.interrupts, self.group = interrupts, engine.programs.group
        self.on_unequal: OnUnequal = on_unequal
        self._shared: SharedBatches | None = None
        self.handlers = handlers
        self._unread: tuple[_metrics.LaunchValues, int] | None = None
        self.in_flight = InFlight(
            engine.programs.mesh, guard.check_flag, status.global_step, guard.add_health
        )
        self.data_wait = DataWait(self.in_flight.is_idle, interrupts)

    def train(
        self, trainer: Training, event_handler: Handler | Sequence[Handler] | None, num_epochs: int
    ) -> None:
        """Run the epochs of this call between the first event and the last."""
        status, interrupts = self.status, self.interrupts
        reason: Reason = "failed"
        error: BaseException | None = None
        try:
            # Inside the try: a handler that fails here gets its EndTraining too.
            self.emit(BeginTraining(status.epoch, num_epochs, status.global_step, trainer))
            interrupts.check()
            # A resumed script passes over the calls of `train` that were done before.
            if not status.is_over:
                self.handlers.restore_to(event_handler)
                self._run_epochs(num_epochs)
            reason = "stopped" if status.is_stopping else "completed"
        except BaseException as raised:
            reason, error = _name_reason(raised), raised
            if interrupts.is_agreed:
                self.group.leave()
            else:
                error = self.group.note_failure(raised)
            if error is not raised:
                raise error from raised
            raise
        finally:
            try:
                # Before EndTraining: what its handlers see is saved already.
                self._end(reason, error)
                if error is None:
                    interrupts.check()
            except BaseException as raised:
                reason, error = _name_reason(raised), raised
                raise
            finally:
                self.emit(EndTraining(reason, error, status.global_step))

    def _run_epochs(self, num_epochs: int) -> None:
        status, interrupts = self.status, self.interrupts
        self.guard.begin(self.in_flight.forget)
        self.saver.begin(status)
        end_epoch = status.begin_call() + num_epochs
        self._meet_if_asked()
        while status.epoch < end_epoch and not status.is_stopping:
            self._run_epoch()
            self._meet_if_asked()
        if not interrupts.is_alone:
            # A signal of the last step is not lost.
            self._agree()
        # The last flags decide whether what is saved at the end is good.
        self.in_flight.drain()
        if self.saver.is_resuming:
            self._leave_reader_at_end()

    def _run_epoch(self) -> None:
        """Run one epoch. The order of the lines below is the contract of `penstock.events`."""
        status, emit, structures = self.status, self.emit, self.engine.programs.structures
        epoch, first_step = status.epoch, status.step
        if not first_step:
            # The sums of the last epoch leave the state: EndEpoch may be read at any time.
            self.engine.reset_metrics()
        status.is_in_epoch = True
        emit(BeginEpoch(epoch, status.global_step, _batches.count_batches(self.reader), first_step))
        self.interrupts.check()
        self._meet_if_asked()
        if status.is_stopping:
            return
        # Closed here and not by the collector: a reader's threads must not outlive an exception.
        with contextlib.closing(self.data_wait.watch(self._place_batches())) as batches:
            for batch in batches:
                counts, first, step = batch.totals or batch.counts, status.global_step, status.step
                is_fetched = []
                # All BeginStep of a launch fire before it: its steps run as one.
                for k in range(len(counts)):
                    begin = BeginStep(epoch, step + k, first + k)
                    emit(begin)
                    is_fetched.append(begin.fetch_metrics)
                # Returns at once; the loop goes on while the device computes.
                values = self._launch(batch, structures)
                for k, count in enumerate(counts):
                    # The handler's reading fetches, not the event.
                    read = functools.partial(values.at, k) if is_fetched[k] else None
                    rate = functools.partial(values.rate_at, k) if values.has_rates else None
                    emit(EndStep(epoch, step + k, first + k, count, read, rate))
                # After all EndStep, so that a handler's `stop` and what it read count.
                self._finish_launch(values, first, any(is_fetched))
                if status.is_stopping:
                    return
        self._end_epoch(epoch)

    def _launch(
        self, batch: DeviceBatch, structures: Mapping[str, _metrics.Structure]
    ) -> _metrics.LaunchValues:
        """Launch the steps of a batch and count them; does not wait for the device."""
        status, interrupts, counts = self.status, self.interrupts, batch.counts
        if not interrupts.is_alone:
            self.group.advance(status.global_step)
        # The launch takes the old state: no interrupt until the new one is stored.
        interrupts.is_held = True
        try:
            values, flag, rates = self.engine.run(batch, self.update_order)
            status.global_step += len(counts)
            status.step += len(counts)
            status.num_examples += sum(batch.totals or counts)
            status.reader_state = batch.reader_state
        finally:
            interrupts.release()
        # Not while interrupts are held back: this may wait for the device.
        self.in_flight.push(flag, status.global_step)
        return _metrics.LaunchValues(values, structures, counts, rates)

    def _finish_launch(
        self, values: _metrics.LaunchValues, first_step: int, is_fetched: bool
    ) -> None:
        """Look at losses that were read, save where it is time, and end on a signal."""
        # Stock handlers read a step one launch late, so that nothing waits for the device.
        unread, self._unread = self._unread, None
        if unread is not None and unread[0].is_read:
            self.guard.check_read(*unread)
        if values.is_read:
            self.guard.check_read(values, first_step)
        elif is_fetched:
            self._unread = values, first_step
        # After the losses were looked at: what is known to be bad is not saved.
        self.saver.after_launch(self.status)
        interrupts = self.interrupts
        if interrupts.is_alone:
            if interrupts.signal is not None:
                interrupts.check()
            return
        if self.group.is_asked or self.status.is_stop_wanted:
            self._meet()

    def _meet_if_asked(self) -> None:
        """Meet the other processes between epochs, where one wants to; does nothing alone."""
        if self.interrupts.is_alone:
            return
        self.group.advance(self.status.global_step)
        if self.group.is_asked or self.status.is_stop_wanted:
            self._meet()

    def _meet(self) -> None:
        """Agree with the other processes, if all are at this place; else go on and do so later."""
        if self.group.meet():
            self._agree()

    def _agree(self) -> None:
        """Stop, save and end as all processes do. A process that did so alone would hang."""
        status, interrupts = self.status, self.interrupts
        agreed = agree(
            self.group,
            interrupts.signal,
            is_due=self.saver.is_time(),
            is_stopping=status.is_stop_wanted,
        )
        status.is_stop_wanted = False
        status.is_stopping = status.is_stopping or agreed.is_stopping
        if agreed.is_due:
            self.saver.save(status)
        if agreed.signal is not None:
            if not self.group.index:
                name = signal.Signals(agreed.signal).name
                step = status.global_step
                _LOGGER.warning("%s: all processes end after global step %d", name, step)
            interrupts.agree(agreed.signal)

    def _end_epoch(self, epoch: int) -> None:
        status = self.status
        if not status.step:
            raise ReaderError(
                f"the reader yielded no batch in epoch {epoch}, expected at least one. Is its data "
                "empty, or is it an iterator that an earlier pass used up?"
            )
        # No flag may span two epochs: the sum that it tells of is emptied between them.
        self.in_flight.end_epoch()
        # Taken before the status leaves the epoch, which sets them to 0.
        num_steps, num_examples = status.step, status.num_examples
        if self._shared is not None:
            num_examples = self._shared.num_examples
        status.leave_epoch()
        read = functools.partial(_read_means, self.engine.programs, self.engine.state, epoch)
        wait = self.data_wait.end_epoch(epoch)
        self.emit(EndEpoch(epoch, status.global_step, num_steps, num_examples, read, wait))
        # After EndEpoch, whose handlers may have tested, and decided by it.
        self.saver.after_epoch(status)
        self.interrupts.check()

    def _end(self, reason: Reason, error: BaseException | None) -> None:
        """Save, and make ready for another call."""
        # A state that has met such a loss is nothing to go on from.
        is_good = not isinstance(error, NonFiniteError)
        status, is_over = self.status, self.status.is_over
        self.interrupts.is_open = False  # a first interrupt does not end the save
        try:
            # Alone in failing, a process must not wait for the others in a save.
            if self.interrupts.is_alone or reason != "failed":
                self.saver.at_end(status, is_good=is_good and not is_over)
        finally:
            if not is_over:
                status.leave_epoch()
            status.call += 1

    def _place_batches(self) -> Iterator[DeviceBatch]:
        """Return the batches of an epoch on their way to the devices."""
        batches = self._group_batches()
        on_host = self.engine.programs.keeps_feeds_on_host
        # On one CPU device a batch stays where it is until its launch: nothing to hide.
        if on_host:
            return batches
        # Others may wait for what this process would first have to launch with them.
        return look_ahead(batches, LOOK_AHEAD, defers_errors=self.interrupts.is_alone)

    def _group_batches(self) -> Iterator[DeviceBatch]:
        """Yield the batches of an epoch, `steps_per_call` to a launch, the rest one by one."""
        if not self.interrupts.is_alone:
            yield from self._level_batches()
            return
        place, group, states = self.engine.programs.place, [], []
        pass_ = self._open_reader()
        is_tracked = self.saver.is_tracking
        for batch in pass_:
            # Of after this batch, and with it: others are read before it has run.
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
        # A launch of another number of steps would be one more program to compile.
        for batch, state in zip(group, states, strict=True):
            yield place("train", (batch,))._replace(reader_state=state)

    def _level_batches(self) -> Iterator[DeviceBatch]:
        """Yield the batches of an epoch as `_group_batches` does: as many on every process."""
        programs = self.engine.programs
        inputs = programs.network.inputs("train")
        shared = self._shared = SharedBatches(
            self.group,
            steps=self.steps_per_call,
            empty=make_empty(inputs),
            on_unequal=self.on_unequal,
            what="trainer.train",
        )
        pass_ = self._open_reader()
        is_tracked = self.saver.is_tracking
        with contextlib.closing(iter(pass_)) as feeds:
            first = next(feeds, None)
            num_devices = programs.mesh.local_mesh.size
            agreed = agree_on_first(self.group, first, num_devices, "trainer.train")
            programs.fit_batches({"train": agreed.size})
            size = programs.batch_sizes["train"]
            batches = (
                Batch(feed, pass_.state() if is_tracked else None)
                for feed in itertools.chain([] if first is None else [first], feeds)
            )
            for group in shared.level(batches, agreed):
                for each in group:
                    check_size(each.feed, size, "trainer.train")
                placed = programs.place("train", [each.feed for each in group])
                totals = tuple([each.total for each in group])
                yield placed._replace(reader_state=group[-1].state, totals=totals)

    def _open_reader(self) -> _batches.Pass:
        """Return a pass over the reader from where training stands in it."""
        if not self.saver.is_resuming:
            return _batches.Pass(self.reader, self.fields)
        self.saver.is_resuming = False
        status = self.status
        return _batches.resume_pass(self.reader, self.fields, status.reader_state, status.step)

    def _leave_reader_at_end(self) -> None:
        """Move the reader to the end of its last epoch: this call was over at the checkpoint.

        A later call that reads it again then begins the next epoch. Another reader begins its own.
        """
        self.saver.is_resuming = False
        if self.status.reader_state is not None:
            pass_ = _batches.Pass(self.reader, self.fields)
            pass_.go_to(self.status.reader_state, 0)
            pass_.close()


class DataWait:
    """The account of waiting for data: which share of its time training spends on the reader.

    It samples one launch in 16: reading the clock at each would cost the smallest networks 2 %.

    Taking the next launch from the reader counts as waiting while the device has nothing to do. It
    counts whole where the device was idle before, half where it became idle meanwhile.

    Arguments:
      is_idle: whether the device has done everything it was given.
      interrupts: open while the reader is waited for.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        interrupts: Interrupts,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._interrupts = interrupts
        self._is_idle, self._clock = is_idle, clock
        self._number = 0
        self._waited = self._sampled = 0.0
        self._is_warned = False

    def watch(self, launches: Iterable[T]) -> Generator[T, None, None]:
        """Yield the launches; look at the clock around some of them.

        An interrupt is raised at once while the reader is waited for.
        """
        iterator, interrupts = iter(launches), self._interrupts
        start, was_idle = -1.0, False
        while True:
            # From one sampled launch's beginning to the next: waiting and running together.
            if start >= 0.0:
                self._sampled += self._clock() - start
                start = -1.0
            self._number += 1
            is_sampled = self._number % SAMPLE_EVERY == 0
            if is_sampled:
                # Asked before the clock is read, so that asking is no waiting.
                was_idle, start = self._is_idle(), self._clock()
            # Nothing is in a launch now: an exception may come at any line of the reader's.
            interrupts.is_open = True
            try:
                launch = next(iterator)
            except StopIteration:
                interrupts.is_open = False
                return
            interrupts.is_open = False
            if is_sampled:
                share = 1.0 if was_idle else 0.5 if self._is_idle() else 0.0
                self._waited += share * (self._clock() - start)
            yield launch

    def end_epoch(self, epoch: int) -> float | None:
        """Return the share since the last epoch's end, None without a sample; warn if high."""
        if not self._sampled:
            return None
        # One launch in 16 stands for all of them.
        share, seconds = self._waited / self._sampled, self._sampled * SAMPLE_EVERY
        self._waited = self._sampled = 0.0
        if share > WARN_SHARE and seconds > WARN_AFTER_SECS and not self._is_warned:
            # Once for a run: what to do about it is the same in every epoch.
            self._is_warned = True
            _LOGGER.warning(
                "training waited for data %.0f %% of the time in epoch %d. Let the reader decode "
                "in more threads or in processes (num_workers=, workers=), keep what it decodes "
                "(readers.cache), read ahead (readers.buffered), or leave casts and normalisation "
                "to the program.",
                100 * share,
                epoch,
            )
        return share


def _read_means(programs: Programs, state: State, epoch: int) -> Metrics:
    """Return the means of an epoch's metrics; waits for the device.

    Raises:
      NonFiniteError: there is none, since every update was skipped.
    """
    try:
        return programs.states.mean_metrics(state)
    except ValueError as error:
        raise NonFiniteError(
            f"epoch {epoch} got no finite loss and gradients, expected some: every update was "
            "skipped, and there is no mean of its metrics."
        ) from error


def _name_reason(error: BaseException) -> Reason:
    """Return why training ended that an exception ended."""
    return "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "failed"

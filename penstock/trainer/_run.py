"""One call of `Trainer.train`, from its first event to its last, and of `Trainer.test`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import operator
import re
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from penstock import _metrics, _reader_items, events, metrics
from penstock._errors import NonFiniteError, check_int
from penstock._interrupts import Interrupts
from penstock._padded_batches import DeviceBatch
from penstock._tracing.untrained import has_draw, list_traces
from penstock.metrics import RowMetric
from penstock.program_builder import State
from penstock.program_builder.engine import Programs
from penstock.trainer import _in_flight
from penstock.trainer._confidence import Resamples
from penstock.trainer._processes import OnUnequal, Processes, share_batches

_LOGGER = logging.getLogger("penstock")

T = TypeVar("T")


@dataclasses.dataclass(kw_only=True, eq=False)
class Run:
    """One call of `Trainer.train`."""

    processes: Processes
    reader: _reader_items.ReaderLike
    fields: _reader_items.Fields
    steps_per_call: int
    emit: events.Handler
    on_non_finite: _in_flight.OnNonFinite
    on_unequal: OnUnequal

    def __post_init__(self) -> None:
        processes, self.updates_every = self.processes, 0
        self.group, self.engine, self.status = processes.group, processes.engine, processes.status
        self.saver, self.interrupts = processes.saver, processes.interrupts
        self._unread: tuple[_metrics.StepValues, int] | None = None
        self.in_flight = _in_flight.InFlight(
            self.engine, self.status, self.saver, self.on_non_finite
        )
        status = self.status  # not of `self`, which holds the engine
        self.data_wait = DataWait(
            self.in_flight.is_idle,
            self.interrupts,
            lambda: time.perf_counter() - status.secs_beside,
        )

    def train(
        self,
        trainer: events.Training,
        event_handler: events.Handler | Sequence[events.Handler] | None,
        num_epochs: int,
    ) -> None:
        """Run the epochs of this call between the first event and the last."""
        status, interrupts = self.status, self.interrupts
        reason: events.Reason = "failed"
        error: BaseException | None = None
        try:
            # Inside the try: a handler that fails here gets its EndTraining too.
            num_left = status.count_epochs(num_epochs)
            begin = events.BeginTraining(status.epoch, num_left, status.global_step, trainer)
            begin.feed_order = self.fields.order
            self.emit(begin)
            name, every = "BeginTraining.updates_every", begin.updates_every
            if every != 0:
                check_int(name, every, 0)
            # A process that ran a program alone would leave the others waiting in theirs.
            self.updates_every = math.gcd(*self.group.exchange(name, operator.index(every)))
            self._run_epochs(event_handler, num_epochs)
            reason = "stopped" if status.is_stopping else "completed"
        except BaseException as raised:
            reason, error = _name_reason(raised), self.group.note_failure(raised)
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
                try:
                    self.emit(events.EndTraining(reason, error, status.global_step))
                finally:
                    status.num_calls += 1

    def _run_epochs(
        self, event_handler: events.Handler | Sequence[events.Handler] | None, num_epochs: int
    ) -> None:
        status = self.status
        # A resumed script passes over the calls of `train` that were done before.
        if status.is_over:
            return
        self.saver.begin(status, event_handler)
        end_epoch = status.begin_call() + num_epochs
        self.group.advance(status.global_step)
        self._meet_if_asked()
        while status.epoch < end_epoch and not status.is_stopping:
            self._run_epoch()
            self.group.advance(status.global_step)
            self._meet_if_asked()
        # A signal of the last step is not lost.
        self.processes.agree()
        # The last flags decide whether what is saved at the end is good.
        self.in_flight.drain()
        # Where this call was over at the checkpoint, the next one begins an epoch.
        self.saver.is_resuming = False

    def _meet_if_asked(self) -> None:
        """Agree where a process wants to stop, save or end, if all are here; else do so later."""
        is_wanted = self.status.is_stop_wanted or self.interrupts.signal is not None
        if (is_wanted or self.group.is_asked) and self.group.meet():
            self.processes.agree()

    def _run_epoch(self) -> None:
        """Run one epoch. The order of the lines below is the contract of `penstock.events`."""
        status, emit, programs = self.status, self.emit, self.engine.programs
        compile_time, is_single = programs.compile_time, len(programs.structures) == 1
        epoch, first_step = status.epoch, status.step
        if not first_step:
            # The sums of the last epoch leave the state: EndEpoch may be read at any time.
            self.engine.reset_metrics()
        status.is_in_epoch = True
        emit(
            events.BeginEpoch(
                epoch, status.global_step, _reader_items.count_batches(self.reader), first_step
            )
        )
        self.group.advance(status.global_step)
        self._meet_if_asked()
        if status.is_stopping:
            return
        placed = self._place_launches()
        # On one CPU device a batch stays where it is until its launch: nothing to hide.
        if not programs.is_single_cpu:
            placed = _in_flight.look_ahead(placed, _in_flight.LOOK_AHEAD, self.group)
        # Closed here and not by the collector: a reader's threads must not outlive an exception.
        with contextlib.closing(self.data_wait.watch(placed)) as batches:
            for batch in batches:
                num_steps, first, step = batch.num_steps, status.global_step, status.step
                is_fetched = []
                # All BeginStep of a launch fire before it: its steps run as one.
                for k in range(num_steps):
                    begin = events.BeginStep(epoch, step + k, first + k)
                    emit(begin)
                    is_fetched.append(begin.fetch_metrics)
                every, compiled = self.updates_every, compile_time.secs
                is_asked = every and (first + num_steps) % every < num_steps
                measured, beside = self.engine.measure(batch) if is_asked else (None, 0.0)
                # Returns at once; the loop goes on while the device computes.
                values, rates = self._launch(batch)
                # In equal parts, so that the steps' sum is the launch's.
                secs = ((compile_time.secs - compiled) / num_steps, beside / num_steps)
                for k in range(num_steps):
                    # The handler's reading fetches, not the event.
                    read = functools.partial(values.at, k) if is_fetched[k] else None
                    rate = (
                        functools.partial(_read_rates, rates, num_steps, is_single, k)
                        if rates
                        else None
                    )
                    updates = None
                    if measured is not None and (first + k + 1) % every == 0:
                        updates = functools.partial(measured.at, k)
                    numbers = (epoch, step + k, first + k, batch.rows.num_examples)
                    emit(events.EndStep(*numbers, read, rate, updates, *secs))
                # After all EndStep, so that a handler's `stop` and what it read count.
                self._finish_launch(values, first, any(is_fetched))
                if status.is_stopping:
                    return
                # The size of the last batch, where it is known, now that there is a program.
                if step == first_step and num_steps == self.group.count == 1:
                    last = getattr(self.reader, "last_batch_size", None)
                    self.engine.compile_ahead(batch, last)
        self._end_epoch(epoch)

    def _launch(self, batch: DeviceBatch) -> tuple[_metrics.StepValues, dict[str, jax.Array]]:
        """Launch the steps of a batch and count them; does not wait for the device.

        Returns the values of the program functions, and the learning rates that are told.
        """
        status, interrupts, num_steps = self.status, self.interrupts, batch.num_steps
        self.group.advance(status.global_step)
        # The launch takes the old state: no interrupt until the new one is stored.
        interrupts.is_held = True
        try:
            values, flag, rates, _ = self.engine.run(batch)
            status.global_step += num_steps
            status.step += num_steps
            status.num_examples += batch.rows.num_examples * num_steps
            status.reader_state = batch.reader_state
        finally:
            interrupts.release()
        # Not while interrupts are held back: this may wait for the device.
        self.in_flight.push(flag, status.global_step)
        structures = self.engine.programs.structures
        show = functools.partial(_metrics.arrange, structures, batch.size)
        return _metrics.StepValues(values, num_steps, len(structures) == 1, show), rates

    def _finish_launch(
        self, values: _metrics.StepValues, first_step: int, is_fetched: bool
    ) -> None:
        """Look at losses that were read, save where it is time, and end on a signal."""
        # Stock handlers read a step one launch late, so that nothing waits for the device.
        unread, self._unread = self._unread, None
        if unread is not None and unread[0].is_read:
            self.in_flight.check_read(*unread)
        if values.is_read:
            self.in_flight.check_read(values, first_step)
        elif is_fetched:
            self._unread = values, first_step
        # After the losses were looked at: what is known to be bad is not saved.
        self.saver.after_launch(self.status)
        self._meet_if_asked()

    def _end_epoch(self, epoch: int) -> None:
        status = self.status
        if not status.step:
            raise _reader_items.refuse_empty(f"the reader yielded no batch in epoch {epoch}")
        # No flag may span two epochs: the sum that it tells of is emptied between them.
        self.in_flight.end_epoch()
        # Taken before the status leaves the epoch, which sets them to 0.
        num_steps, num_examples = status.step, status.num_examples
        # What is saved until all handlers have seen the end is of before it: a rerun ends the
        # epoch again, with state and handlers as they were.
        self.saver.hold_moment(status)
        status.leave_epoch()
        read = functools.partial(_read_means, self.engine.programs, self.engine.state, epoch)
        wait = self.data_wait.end_epoch(epoch)
        self.emit(events.EndEpoch(epoch, status.global_step, num_steps, num_examples, read, wait))
        # After EndEpoch, whose handlers may have tested, and decided by it.
        self.saver.after_epoch(status)

    def _end(self, reason: events.Reason, error: BaseException | None) -> None:
        # A state that has met such a loss is nothing to go on from.
        is_good = not isinstance(error, NonFiniteError)
        status, is_over = self.status, self.status.is_over
        self.interrupts.is_open = False  # a first interrupt does not end the save
        try:
            # Alone in failing, a process must not wait for the others in a save.
            if error is None or self.interrupts.is_agreed:
                self.saver.at_end(status, is_good=is_good and not is_over)
            else:
                self.saver.give_up()
        finally:
            if not is_over:
                status.leave_epoch()

    def _place_launches(self) -> Iterator[DeviceBatch]:
        """Yield the batches of an epoch, `steps_per_call` to a launch, the rest one by one.

        What they need is compiled while the steps before them run.
        """
        programs, is_tracked = self.engine.programs, self.saver.is_tracking
        steps = {"steps": self.steps_per_call, "is_tracked": is_tracked}
        for launch in share_batches(
            programs, "train", self._open_reader(), self.on_unequal, **steps
        ):
            batch = programs.place("train", launch.feeds, launch.shares)
            if is_tracked:
                batch = batch._replace(reader_state=launch.state)
            # A size that no batch before had, when it is first placed, some steps before its own.
            self.engine.compile_ahead(batch)
            yield batch

    def _open_reader(self) -> _reader_items.Pass:
        status = self.status
        if not self.saver.is_resuming:
            return _reader_items.Pass(self.reader, self.fields, status.epoch)
        self.saver.is_resuming = False
        return _reader_items.resume_pass(
            self.reader, self.fields, status.epoch, status.reader_state, status.step
        )


def _read_means(programs: Programs, state: State, epoch: int) -> events.Metrics:
    """Return the means of an epoch's metrics; waits for the device."""
    try:
        return programs.states.mean_metrics(state)
    except _metrics.NoExamplesError as error:
        raise NonFiniteError(
            f"epoch {epoch} got no finite loss and gradients, expected some: every update was "
            "skipped, and there is no mean of its metrics."
        ) from error


def _read_rates(
    rates: Mapping[str, jax.Array], num_steps: int, is_single: bool, number: int
) -> float | dict[str, float]:
    """Return the learning rate of step `number` of a launch; waits for the device."""
    show = lambda _, rate: float(rate)  # noqa: E731
    return _metrics.StepValues(rates, num_steps, is_single, show).at(number)


def _name_reason(error: BaseException) -> events.Reason:
    return "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "failed"


SAMPLE_EVERY = 16
LONG_SECS = 1e-3
WARN_SHARE = 0.1
WARN_AFTER_SECS = 5.0


class DataWait:
    """The account of waiting for data: which share of its time training spends on the reader.

    It samples one launch in 16, since a clock at each would cost the smallest networks 2 %, and
    each while 16 take more than 16 ms. Waiting counts whole where the device was idle before, half
    where it became idle meanwhile.
    """

    def __init__(
        self, is_idle: Callable[[], bool], interrupts: Interrupts, clock: Callable[[], float]
    ) -> None:
        self._interrupts = interrupts
        self._is_idle, self._clock = is_idle, clock
        self._number, self._every = 0, SAMPLE_EVERY
        # The samples since the interval between them was chosen.
        self._num_recent, self._recent_secs = 0, 0.0
        # Seconds of all launches that the samples stand for.
        self._waited = self._passed = 0.0
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
                seconds = self._clock() - start
                self._passed += self._every * seconds
                start = -1.0
                self._num_recent += 1
                self._recent_secs += seconds
                # A mean over several: the host runs ahead of the device for a few launches.
                if self._every * self._num_recent >= SAMPLE_EVERY:
                    is_long = self._recent_secs > self._num_recent * LONG_SECS
                    self._every = 1 if is_long else SAMPLE_EVERY
                    self._num_recent, self._recent_secs = 0, 0.0
            self._number += 1
            is_sampled = self._number % self._every == 0
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
                self._waited += self._every * share * (self._clock() - start)
            yield launch

    def end_epoch(self, epoch: int) -> float | None:
        """Return the share since the last epoch's end, None without a sample; warn if high."""
        if not self._passed:
            return None
        share, seconds = self._waited / self._passed, self._passed
        self._waited = self._passed = 0.0
        if share > WARN_SHARE and seconds > WARN_AFTER_SECS and not self._is_warned:
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


def run_test(
    programs: Programs,
    state: State,
    reader: _reader_items.ReaderLike,
    fields: _reader_items.Fields,
    interrupts: Interrupts,
    on_unequal: OnUnequal,
    confidence: float | None,
) -> Any:
    """Return the means over every example of `reader`; an interrupt is raised at once."""
    sums = {name: programs.make_zeros(probe) for name, probe in programs.network.test.items()}
    kept: dict[str, list[list[RowMetric]]] = {name: [] for name in sums}
    running: list[tuple[jax.Array, list[RowMetric]]] = []
    limit = _in_flight.max_in_flight(programs.mesh)
    num_batches = 0
    resamples = None if confidence is None else Resamples(programs, confidence)
    with interrupts.open():
        # Always the same pass: a test depends on no test before it, and takes none from training.
        batches = _reader_items.Pass(reader, fields, 0)
        for launch in share_batches(programs, "test", batches, on_unequal):
            placed = programs.place("test", launch.feeds, launch.shares)
            programs.group.advance()
            for name in sums:
                # Added up on the device: nothing is fetched before the end.
                sums[name], values = programs.test(state, sums[name], placed, name)
                _look_at_means(programs, state, placed, name, values)
                kept[name].append([value for value in values if isinstance(value, RowMetric)])
                running.append((sums[name].scalars, kept[name][-1]))
                # The host would otherwise fill the device's memory with batches, and with rows.
                if len(running) > limit:
                    oldest, rows = running.pop(0)
                    oldest.block_until_ready()
                    rows[:] = _metrics.fetch(rows)
            if resamples is not None:
                resamples.add(state, placed)
            num_batches += 1
    if not num_batches:
        raise _reader_items.refuse_empty("the reader yielded no batch to test on")
    means = {}
    for name, accumulator in sums.items():
        structure = programs.network.test[name].structure
        batches = [*zip(*_metrics.fetch(kept[name]), strict=True)]
        rows = [_metrics.join_rows(metrics, np) for metrics in batches]
        values = _metrics.compute_values(accumulator, structure, rows)
        if resamples is None:
            means[name] = structure.build(values)
        else:
            means[name] = resamples.measure(name, values, batches)
    return next(iter(means.values())) if len(means) == 1 else means


def _look_at_means(
    programs: Programs,
    state: State,
    batch: DeviceBatch,
    objective: str,
    values: Sequence[_metrics.Value],
) -> None:
    """Warn once of single numbers that are no means over examples, by the halves of a batch.

    What `test` shows of them depends on the batch size. Collective.
    """
    program = programs.network.test[objective]
    structure, key = program.structure, f"means of {objective}"
    doubted = structure.list_doubted()
    # An odd batch has no halves of one size, and no mean of them.
    if not doubted or batch.rows.num_examples % 2 or not programs.is_first_time(key):
        return
    whole = jax.device_get([values[number] for number in doubted])
    halves = programs.test_halves(state, batch, objective)
    note = ""
    if has_draw([program.trace, *list_traces(program.trace.eqns)]):
        note = " If only its random numbers differ, which each half draws anew, leave it as it is."
    tolerance = 1e-4 if program.options.precision.compute_dtype is None else 2e-2
    for number, value, parts in zip(doubted, whole, halves.T, strict=True):
        mean, item = float(parts.mean()), structure.items[number]
        if abs(mean - float(value)) > tolerance * (abs(parts).max() + 1e-6):
            _LOGGER.warning(
                "%s has %s, which is no mean over examples: %.6g for a batch, and %.6g the mean of "
                "its halves. What a test or an epoch shows of it is the mean over batches, and "
                "depends on the batch size. Return %s.%s",
                program.name,
                item.label,
                value,
                mean,
                _name_exact("" if item.key is None else item.key),
                note,
            )


def _name_exact(key: Hashable) -> str:
    """Return which metric of ours a value's name stands for, such as `"val_f1"`; else any."""
    letters = re.sub(r"[^a-z0-9]", "", str(key).lower())
    names = sorted(name for name in vars(metrics) if name[0].isupper())
    kinds = [name for name in names if name not in ("Mean", "Metric", "RowMetric")]
    fitting = [name for name in sorted(kinds, key=len) if name.lower() in letters]
    # "loss" is no sign of LogLoss: anything may be minimised.
    if not fitting and letters[2:] and letters != "loss":
        fitting = [name for name in kinds if letters in name.lower()]
    if not fitting:
        return "a penstock.metrics.Metric: its sums are exact"
    return f"penstock.metrics.{fitting[-1]}.of(...), which is exact"

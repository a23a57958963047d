"""`Trainer`: the training loop, its events, and the parameters it trains."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from penstock import _batches, _feeding, _metrics, _parameters
from penstock._batches import FeedOrder
from penstock._data_wait import DataWait
from penstock._errors import NonFiniteError, ReaderError, UnknownNameError, listed, nearest
from penstock._in_flight import InFlight, look_ahead, max_in_flight
from penstock._interrupts import Interrupts
from penstock._mesh import Place
from penstock.events import (
    BeginEpoch,
    BeginStep,
    BeginTraining,
    EndEpoch,
    EndStep,
    EndTraining,
    Handler,
    Reason,
    emitter,
)
from penstock.program_builder import Objective, Optimizer, ProgramBuilder, State

_LOGGER = logging.getLogger("penstock")

LOOK_AHEAD = 2
"""Batches on the device beyond the one that runs; more only costs memory."""


class Trainer:
    """Train a network written as a program function.

    Arguments:
      program_func: a function without arguments that calls `layers.*` and returns the loss, or the
        loss first and metrics after it in a tuple, list or dict; or a dict of `Objective`s.
      optimizer: an optax transformation, or a zero-argument function that returns one.
      infer_func: gives `infer` of the live parameters.
      param_path: a folder of parameters to start from. Where there is none yet, training starts
        from initial values and says so.
      place: `None` (every device of the default backend), `"cpu"`, `"gpu"`, `"tpu"`, a device, a
        list of devices, or a `Mesh` with the one axis `"data"`.
      schedule: with several objectives, how many updates each makes of every batch, in this order,
        e.g. `{"discriminator": 1, "generator": 2}`; once each by default.
      steps_per_call: steps in one launch. It pays where a step takes less than about a
        millisecond. Events still fire for each step.
      seed: decides initial values and all randomness inside the programs.

    Raises:
      ProgramError: no programs can be derived; said before any data is read.
      ParameterError: the parameters at `param_path` do not fit.

    >>> import numpy as np, optax
    >>> from penstock import layers, readers
    >>> def train_program():
    ...     prediction = layers.fc(layers.data("x", shape=[2]), size=1)
    ...     return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    >>> x = np.random.default_rng(0).normal(size=(100, 2)).astype("float32")
    >>> reader = readers.arrays({"x": x, "y": x.sum(axis=1)}, batch_size=10)
    >>> trainer = Trainer(train_program, optax.sgd(0.1))
    >>> trainer.train(reader, num_epochs=5)
    >>> trainer.test(reader) < 1e-3
    True
    """

    def __init__(
        self,
        program_func: Callable[[], Any] | Mapping[str, Objective],
        optimizer: Optimizer | None = None,
        *,
        infer_func: Callable[[], Any] | None = None,
        param_path: str | os.PathLike[str] | None = None,
        place: Place = None,
        schedule: Mapping[str, int] | None = None,
        steps_per_call: int = 1,
        seed: int = 0,
    ) -> None:
        _check_count("steps_per_call", steps_per_call, 1)
        self.builder = ProgramBuilder(program_func, optimizer, infer_func=infer_func, place=place)
        self.steps_per_call = int(steps_per_call)
        self.epoch = 0
        self.global_step = 0
        self._rounds = _rounds(self.builder.objectives, schedule)
        self._feed_order: FeedOrder | None = None
        self._is_stopping = self._is_running = False
        self._packed = self.builder.pack(self.builder.init(seed))
        if param_path is not None:
            self._start_from(param_path)

    def _start_from(self, param_path: str | os.PathLike[str]) -> None:
        if os.path.exists(os.path.join(param_path, _parameters.DATA_FILE)):
            self.load_params(param_path)
            _LOGGER.info("parameters loaded from %s", os.fspath(param_path))
        else:
            _LOGGER.warning(
                "no parameters at %s yet: training starts from initial values",
                os.fspath(param_path),
            )

    def train(
        self,
        reader: Any,
        event_handler: Handler | Sequence[Handler] | None = None,
        num_epochs: int = 1,
        feed_order: FeedOrder | None = None,
    ) -> None:
        """Train for `num_epochs` passes over `reader`; see `penstock.events` for the order of it.

        Called again, it goes on: parameters, optimizer state, epoch and step numbers are kept.

        Arguments:
          reader: yields batches, anew at every pass: a zero-argument function that returns an
            iterator, or an iterable. A batch is a dict of arrays, a tuple of arrays, or a list of
            samples. It must not write into arrays it has yielded: they may not have been used yet.
          event_handler: a function that takes an event, or a list of them.
          feed_order: the input names in the order of a tuple's fields; also a dict of name to
            index. `test` uses it too, unless told otherwise.

        Raises:
          ProgramError: an objective has no optimizer.
          FeedError: a batch does not fit the inputs the program declares.
          ReaderError: the reader yields nothing, or cannot be read again.
          NonFiniteError: a loss was nan or infinite.
        """
        _check_count("num_epochs", num_epochs, 0)
        self.builder.check_rounds(self._rounds)
        emit = emitter(event_handler)
        _batches.check_reader(reader, num_epochs)
        inputs, known = self.builder.inputs("train"), self.builder.feed_specs
        fields = _batches.Fields(inputs, feed_order or self._feed_order, known)
        self._feed_order = feed_order or self._feed_order
        self._begin()
        reason: Reason = "failed"
        error: BaseException | None = None
        in_flight = InFlight(self.builder.mesh, self._raise_bad_range, self.global_step)
        waiting = DataWait(in_flight.is_idle)
        try:
            with Interrupts() as interrupts:
                emit(BeginTraining(self.epoch, num_epochs, self.global_step))
                for _ in range(num_epochs):
                    if not self._is_stopping:
                        self._run_epoch(reader, fields, emit, in_flight, waiting, interrupts)
                in_flight.drain()
            reason = "stopped" if self._is_stopping else "completed"
        except BaseException as raised:
            reason = "interrupted" if isinstance(raised, KeyboardInterrupt) else "failed"
            error = raised
            raise
        finally:
            self._is_running = False
            emit(EndTraining(reason, error, self.global_step))

    def _begin(self) -> None:
        if self._is_running:
            raise RuntimeError(
                "train got called while it runs, in a handler or another thread, expected one run "
                "at a time: a trainer has one state. Make a second Trainer, or call train again "
                "when this run has ended."
            )
        self._is_running, self._is_stopping = True, False

    def _run_epoch(
        self,
        reader: Any,
        fields: _batches.Fields,
        emit: Handler,
        in_flight: InFlight,
        waiting: DataWait,
        interrupts: Interrupts,
    ) -> None:
        """Run one epoch. The order of the lines below is the contract of `penstock.events`."""
        builder, epoch = self.builder, self.epoch
        step = num_examples = 0
        self.epoch += 1
        # The sums of the last epoch leave the state, so that EndEpoch may be read at any time.
        self._state = builder.reset_metrics(self._state)
        emit(BeginEpoch(epoch, self.global_step, _batches.length_of(reader)))
        if self._is_stopping:
            return
        rounds, structures = self._rounds, builder.structures
        # Closed here and not by the collector: a reader's threads must not outlive an exception.
        with contextlib.closing(waiting.watched(self._launches(reader, fields))) as launches:
            for placed in launches:
                counts, first = placed.counts, self.global_step
                is_fetched = []
                for k in range(len(counts)):
                    begin = BeginStep(epoch, step + k, first + k)
                    emit(begin)
                    is_fetched.append(begin.fetch_metrics)
                # The launch takes the old state: no interrupt until the new one is stored.
                interrupts.is_held = True
                try:
                    self._packed, values, flag = builder.launch(self._packed, placed, rounds)
                    self.global_step = first + len(counts)
                finally:
                    interrupts.is_held = False
                if interrupts.is_pending:
                    interrupts.raise_pending()
                in_flight.push(flag, self.global_step)
                launched = _metrics.LaunchValues(values, structures, counts)
                del values  # with fetch_metrics off nothing keeps them on the device
                for k, count in enumerate(counts):
                    read = functools.partial(launched.at, k) if is_fetched[k] else None
                    emit(EndStep(epoch, step + k, first + k, count, read))
                if launched.is_read:
                    self._check_read(launched, first)
                step += len(counts)
                num_examples += sum(counts)
                if self._is_stopping:
                    return
        if not step:
            raise ReaderError(
                f"the reader yielded no batch in epoch {epoch}, expected at least one. Is its data "
                "empty, or is it an iterator that an earlier pass used up?"
            )
        in_flight.end_epoch()
        read = functools.partial(builder.mean_metrics, self._state)
        emit(EndEpoch(epoch, self.global_step, step, num_examples, read, waiting.end_epoch(epoch)))

    def _launches(self, reader: Any, fields: _batches.Fields) -> Iterator[_feeding.Placed]:
        placed = self._placed(reader, fields)
        return placed if self.builder.feeds_ride_along else look_ahead(placed, LOOK_AHEAD)

    def _placed(self, reader: Any, fields: _batches.Fields) -> Iterator[_feeding.Placed]:
        """Yield the batches of an epoch, `steps_per_call` to a launch, the rest one by one."""
        place, group = self.builder.place, []
        for batch in _batches.one_pass(reader, fields):
            if self.steps_per_call == 1:
                yield place("train", (batch,))
                continue
            group.append(batch)
            if len(group) == self.steps_per_call:
                yield place("train", group)
                group = []
        for batch in group:
            yield place("train", (batch,))

    def stop(self) -> None:
        """End training after the current step's `EndStep`; has no effect outside `train`."""
        self._is_stopping = True

    def test(self, reader: Any, feed_order: FeedOrder | None = None) -> Any:
        """Return the mean of the metrics over every example of `reader`, in test mode.

        Each example counts once, whatever the batch size and the number of devices. Waits for the
        device once, at the end.

        Returns:
          The program function's structure, with Python floats for scalars; by objective, where
          there are several.

        Raises:
          FeedError: a batch does not fit the inputs the program declares.
          ReaderError: the reader yields nothing.
        """
        _batches.check_reader(reader, 1)
        builder = self.builder
        inputs = builder.inputs("test")
        if feed_order is None and set(inputs) <= set(self._feed_order or ()):
            feed_order = self._feed_order
        fields = _batches.Fields(inputs, feed_order, builder.feed_specs)
        state = self._state
        sums = {name: builder.test_zeros(name) for name in builder.objectives}
        running: list[jax.Array] = []
        limit = max_in_flight(builder.mesh)
        num_batches = 0
        for batch in _batches.one_pass(reader, fields):
            placed = builder.place("test", [batch])
            for name in sums:
                sums[name], _ = builder.test_launch(state, sums[name], placed, name)
                running.append(sums[name].scalars)
                if len(running) > limit:
                    running.pop(0).block_until_ready()
            num_batches += 1
        if not num_batches:
            raise ReaderError(
                "the reader yielded no batch to test on, expected at least one. Is its data empty, "
                "or is it an iterator that an earlier pass used up?"
            )
        means = {name: builder.test_means(each, name) for name, each in sums.items()}
        return next(iter(means.values())) if len(means) == 1 else means

    def infer(self, feed: Mapping[str, Any]) -> Any:
        """Return what `infer_func` returns for a feed of any length, with the live parameters.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
        """
        return self.builder.infer(self._state.variables, feed)

    @property
    def _state(self) -> State:
        return self.builder.unpack(self._packed)

    @_state.setter
    def _state(self, state: State) -> None:
        self._packed = self.builder.pack(state)

    @property
    def parameters(self) -> _parameters.Parameters:
        """The parameters and running statistics by name; see `penstock.Parameters`."""
        return _parameters.Parameters(lambda: self._state.variables, self._adopt)

    def _adopt(self, variables: Mapping[str, Any]) -> None:
        self._state = self.builder.adopt(variables, self._state)

    def save_params(self, param_path: str | os.PathLike[str]) -> None:
        """Write parameters and running statistics to a folder, which is made or overwritten.

        Optimizer state is not part of it. `Inferencer` and `load_params` read it.
        """
        _parameters.save(param_path, self._state.variables)

    def save_inference_model(self, param_path: str | os.PathLike[str]) -> None:
        """Do what `save_params` does; Fluid's name for it.

        The network itself is not saved: an `Inferencer` gets it from its `infer_func`.
        """
        self.save_params(param_path)

    def load_params(
        self, param_path: str | os.PathLike[str], *, partial: bool = False
    ) -> dict[str, list[str]]:
        """Read parameters and running statistics from a folder; optimizer state is kept.

        Arguments:
          partial: load what fits in name, shape and dtype, and leave the rest as it is.

        Returns:
          What was `missing`, `extra` and `mismatched`, empty lists unless `partial`.

        Raises:
          FileNotFoundError: there are no parameters at `param_path`.
          ParameterError: listing every missing, extra or mismatched entry. Nothing is loaded then.
        """
        table = self.builder.parameter_shapes
        entries = _parameters.read(param_path)
        if not partial:
            hint = "Pass partial=True to load what fits and keep the rest."
            _parameters.check(param_path, entries, table, may_have_extra=False, hint=hint)
        found = _parameters.differences(entries, table)
        fitting = _parameters.fitting(entries, table)
        live = _parameters.flatten(self._state.variables)
        self._adopt(_parameters.nested({**live, **fitting}))
        return found

    def _check_read(self, launched: _metrics.LaunchValues, first_step: int) -> None:
        """Raise if a handler has just read a loss that is not finite; costs no waiting."""
        for k in range(launched.num_steps):
            for name, loss in launched.losses(k).items():
                if not np.isfinite(loss):
                    of = f" of {name!r}" if len(self.builder.objectives) > 1 else ""
                    self._raise_non_finite(f"a loss{of} of {loss} at global step {first_step + k}")

    def _raise_bad_range(self, first: int, last: int) -> None:
        where = f"at global step {first}" if first == last else f"in global steps {first} to {last}"
        self._raise_non_finite(f"a loss that is not finite {where}")

    def _raise_non_finite(self, what: str) -> NoReturn:
        raise NonFiniteError(
            f"Trainer got {what}, expected a finite one. The parameters have followed it since. "
            "Look for an id or a label out of range (they give nan), the log of zero or a division "
            "by zero; else lower the learning rate, or clip gradients (optax.clip_by_global_norm)."
        )


def _check_count(argument: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{argument} got {value!r}, expected an integer of {least} or more.")


def _rounds(
    objectives: Mapping[str, Objective], schedule: Mapping[str, int] | None
) -> tuple[str, ...]:
    """Return the objectives' names in the order of their updates of one batch."""
    if schedule is None:
        return tuple(objectives)
    for name, count in schedule.items():
        if name not in objectives:
            raise UnknownNameError(
                f"schedule got the objective {name!r}, expected one of {listed(objectives)}."
                + nearest(str(name), objectives)
            )
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise ValueError(f"schedule got {name!r}: {count!r}, expected a count of 0 or more.")
    rounds = tuple(name for name, count in schedule.items() for _ in range(count))
    if not rounds:
        raise ValueError(f"schedule got {dict(schedule)}, expected at least one update.")
    return rounds

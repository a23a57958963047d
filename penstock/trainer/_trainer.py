"""`Trainer`: what a user asks of a training run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from penstock import _batches, _parameters
from penstock._batches import FeedOrder
from penstock._checkpoint import CheckpointConfig, Position, Store, config_of
from penstock._data_wait import DataWait
from penstock._errors import CheckpointError, NonFiniteError
from penstock._in_flight import InFlight
from penstock._interrupts import Interrupts
from penstock._mesh import Place
from penstock.events import BeginTraining, EndTraining, Handler, Reason, emitter
from penstock.program_builder import (
    Objective,
    Optimizer,
    Precision,
    PrecisionName,
    ProgramBuilder,
    State,
)
from penstock.trainer._agreement import Agreement
from penstock.trainer._arguments import check_action, check_count, rounds_of
from penstock.trainer._describe import described, versions
from penstock.trainer._guard import Guard, OnNonFinite
from penstock.trainer._handler_states import HandlerStates
from penstock.trainer._loop import Loop
from penstock.trainer._parameter_access import ParameterAccess
from penstock.trainer._reader_states import decoded
from penstock.trainer._replay import replayed
from penstock.trainer._restoring import restored
from penstock.trainer._saver import CheckpointSaver, Saver
from penstock.trainer._sources import PARAMETER_NAMES
from penstock.trainer._status import Status

_LOGGER = logging.getLogger("penstock")


class Trainer(ParameterAccess):
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
      checkpoint: a `CheckpointConfig`, or a folder for a checkpoint each epoch. Where it holds one
        already, the trainer begins with that, and `train` goes on at the next sample.
      on_non_finite: what a loss that is not finite does: `"stop"` raises; `"skip"` leaves out each
        update whose loss or gradient is not finite, inside the step; `"roll_back"` returns to the
        last checkpoint and goes on with the next batch.
      precision: what layers compute products in: `"float32"`, `"bfloat16"`, `"float16"` (with a
        dynamic loss scale), a `ps.Precision`, or `"auto"`: bfloat16 where the accelerator has it.
        Parameters, optimizer state, statistics and losses are float32 in any case.
      gradient_accumulation_steps: the parts that a device's share of a batch is cut into. They run
        one after the other in the memory of one, with one reduction over the devices.
      freeze: what is not trained: `"backbone"` with all that lies under it, or globs such as
        `"*/w"`. Batch norm whose running statistics match normalises by them and keeps them.

    Raises:
      ProgramError: no programs can be derived; said before any data is read.
      ParameterError: the parameters at `param_path` do not fit.
      CheckpointError: the checkpoint is of another network, or none can be read.

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

    _emitter = staticmethod(emitter)  # `penstock.fluid` changes what handlers see

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
        checkpoint: CheckpointConfig | str | os.PathLike[str] | None = None,
        on_non_finite: OnNonFinite = "stop",
        precision: PrecisionName | Precision = "auto",
        gradient_accumulation_steps: int = 1,
        freeze: str | Sequence[str] = (),
    ) -> None:
        check_count("steps_per_call", steps_per_call, 1)
        check_action(on_non_finite, checkpoint)
        self.builder = ProgramBuilder(
            program_func,
            optimizer,
            infer_func=infer_func,
            place=place,
            skips_non_finite=on_non_finite == "skip",
            precision=precision,
            gradient_accumulation_steps=gradient_accumulation_steps,
            freeze=freeze,
        )
        self.steps_per_call, self.seed = int(steps_per_call), seed
        self._on_non_finite, self._config = on_non_finite, config_of(checkpoint)
        self._rounds = rounds_of(self.builder.objectives, schedule)
        self._feed_order, self._interrupts = None, Interrupts()
        self._handlers = HandlerStates()
        self._status = Status(self.builder.pack(self.builder.init(seed)))
        self._resumed: Position | None = None
        self._saver = Saver()
        if self._config is not None:
            self._saver = CheckpointSaver(
                self.builder,
                Store(self._config),
                self._extra,
                saves_first=on_non_finite == "roll_back",
            )
            self._resume(self._saver)
        roll_back, num_updates = self._saver.good_state, len(self._rounds)
        self._guard = Guard(self.builder, self._status, on_non_finite, roll_back, num_updates)
        if param_path is not None and self._resumed is None:
            self._start_from(param_path)

    @property
    def epoch(self) -> int:
        """The epoch that runs, or runs next, from 0 over all calls of `train`."""
        return self._status.epoch

    @property
    def global_step(self) -> int:
        """Steps done, over all calls of `train`."""
        return self._status.global_step

    def _start_from(self, param_path: str | os.PathLike[str]) -> None:
        if os.path.exists(os.path.join(param_path, _parameters.DATA_FILE)):
            self.load_params(param_path)
            _LOGGER.info("parameters loaded from %s", os.fspath(param_path))
        else:
            _LOGGER.warning(
                "no parameters at %s yet: training starts from initial values",
                os.fspath(param_path),
            )

    def _resume(self, saver: CheckpointSaver) -> None:
        with saver.held():
            store, contents = saver.store, saver.newest()
        if contents is None:
            return
        self._status.packed = restored(self.builder, contents, str(store.directory))
        self._resumed = position = contents.position
        self._status.go_to(position, decoded(position.reader_state))
        self._handlers.resumed(contents.extra.get("handlers", []))
        self.builder.fit_batches(position.batch_sizes)
        saver.resumed_at(position)
        where = store.directory / str(position.global_step)
        steps = f"{position.step} steps into epoch {position.epoch}"
        _LOGGER.warning("resuming from %s: global step %d, %s", where, position.global_step, steps)

    def train(
        self,
        reader: Any,
        event_handler: Handler | Sequence[Handler] | None = None,
        num_epochs: int = 1,
        feed_order: FeedOrder | None = None,
    ) -> None:
        """Train for `num_epochs` passes over `reader`; see `penstock.events` for the order of it.

        Called again, it goes on: parameters, optimizer state, epoch and step numbers are kept. The
        same calls with the same checkpoint directory in another process go on where the last ended.
        Ctrl-C and SIGTERM end after the current step; a second one at once.

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
          CheckpointError: checkpoints could not be written; said when training has ended.
        """
        check_count("num_epochs", num_epochs, 0)
        emit = self._emitter(event_handler)
        _batches.check_reader(reader, num_epochs)
        fields = self._fields(feed_order)
        reason: Reason = "failed"
        error: BaseException | None = None
        with self._running(), Interrupts(is_alone=jax.process_count() == 1) as self._interrupts:
            try:
                emit(BeginTraining(self.epoch, num_epochs, self.global_step, self))
                self._interrupts.check()
                if not self._is_over():
                    self._handlers.hand_back_to(event_handler)
                    self._loop(reader, fields, emit).run(self._first_epoch() + num_epochs)
                reason = "stopped" if self._status.is_stopping else "completed"
            except BaseException as raised:
                reason, error = _reason_of(raised), raised
                raise
            finally:
                try:
                    self._end(reason, error)
                    if error is None:
                        self._interrupts.check()
                except BaseException as raised:
                    reason, error = _reason_of(raised), raised
                    raise
                finally:
                    emit(EndTraining(reason, error, self.global_step))
        self._raise_failures()

    def _fields(self, feed_order: FeedOrder | None) -> _batches.Fields:
        """Return how samples are named in training; remembers the order for tests."""
        self.builder.check_rounds(self._rounds)
        inputs, known = self.builder.inputs("train"), self.builder.feed_specs
        fields = _batches.Fields(inputs, feed_order or self._feed_order, known)
        self._feed_order = feed_order or self._feed_order
        return fields

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Be the one run of this trainer, and of its folder."""
        if self._status.is_running:
            raise RuntimeError(
                "train got called while it runs, in a handler or another thread, expected one run "
                "at a time: a trainer has one state. Make a second Trainer, or call train again "
                "when this run has ended."
            )
        self._status.is_running, self._status.is_stopping = True, False
        try:
            with self._saver.held():
                yield
        finally:
            self._status.is_running = False

    def _is_over(self) -> bool:
        """Return whether this call of `train` had ended before the checkpoint was written."""
        return self._resumed is not None and self._status.call < self._resumed.call

    def _end(self, reason: Reason, error: BaseException | None) -> None:
        """Save, and make ready for another call."""
        is_good = not isinstance(error, NonFiniteError)
        status, is_over = self._status, self._is_over()
        self._interrupts.is_open = False  # a first interrupt does not end the save
        try:
            # Alone in failing, a process must not wait for the others in a save.
            if jax.process_count() == 1 or reason != "failed":
                self._saver.at_end(status, is_good=is_good and not is_over)
        finally:
            if not is_over:
                status.leave_epoch()
            status.call += 1

    def _first_epoch(self) -> int:
        """Return the epoch in which this call began, in this process or in the resumed run."""
        status, resumed = self._status, self._resumed
        status.first_epoch = status.epoch
        if resumed is not None and status.call == resumed.call:
            status.first_epoch = resumed.first_epoch
        return status.first_epoch

    def _raise_failures(self) -> None:
        failures = self._saver.failures()
        if failures:
            raise CheckpointError(
                f"training ended, but {len(failures)} checkpoint"
                f"{' was' if len(failures) == 1 else 's were'} not written:\n  "
                + "\n  ".join(failures)
                + "\nThe trainer is valid: call trainer.save_checkpoint() when there is room."
            )

    def _loop(self, reader: Any, fields: _batches.Fields, emit: Handler) -> Loop:
        guard = self._guard
        in_flight = InFlight(self.builder.mesh, guard.check_flag, self.global_step, guard.deepen)
        guard.begin(in_flight.forget)
        self._saver.begin(self._status)
        return Loop(
            builder=self.builder,
            status=self._status,
            reader=reader,
            fields=fields,
            rounds=self._rounds,
            steps_per_call=self.steps_per_call,
            emit=emit,
            in_flight=in_flight,
            waiting=DataWait(in_flight.is_idle),
            interrupts=self._interrupts,
            saver=self._saver,
            agreement=Agreement(),
            check_read=self._guard.check_read,
        )

    def stop(self) -> None:
        """End training after the current step's `EndStep`; has no effect outside `train`."""
        self._status.is_stopping = True

    def save_checkpoint(self) -> None:
        """Write a checkpoint now, and wait for it; handlers may call it too.

        Raises:
          CheckpointError: it could not be written, or the trainer has no `checkpoint` folder.
        """
        if not isinstance(self._saver, CheckpointSaver):
            raise CheckpointError(
                "save_checkpoint got no folder to write to, expected "
                "Trainer(..., checkpoint='runs/a') or a ps.CheckpointConfig."
            )
        with self._saver.held():
            self._saver.save(self._status, is_last=True)
        self._raise_failures()

    def describe(self) -> dict[str, Any]:
        """Return what this run is: versions, devices, configuration, number of parameters.

        With a checkpoint folder it is also written there, as `run.json`.
        """
        config = self._config
        configuration = {
            "objectives": list(self.builder.objectives),
            "schedule": list(self._rounds),
            "steps_per_call": self.steps_per_call,
            "seed": int(self.seed),
            "on_non_finite": self._on_non_finite,
            "precision": str(self.builder.options.precision),
            "gradient_accumulation_steps": self.builder.options.num_parts,
            "freeze": list(self.builder.options.freeze),
            "checkpoint": None if config is None else config.as_json(),
        }
        return described(self.builder, configuration, self._saver.directory)

    def replay(
        self, reader: Any, step: int | None = None, feed_order: FeedOrder | None = None
    ) -> None:
        """Run again the step whose loss or gradient was not finite, with JAX's nan debugging.

        Goes from the last checkpoint before that step, or from the initial values where there is
        none, to the step itself, and there raises JAX's `FloatingPointError` at the operation that
        made the first nan. The trainer's own state is left alone. Of several processes all call it.

        Arguments:
          reader: the reader of the run, which must yield the same batches again.
          step: the global step; by default the first whose loss or gradient is not finite.

        Raises:
          FloatingPointError: naming the step; its cause shows the line of the program function.
        """
        builder, bad = self.builder, self._guard.bad_steps
        order = feed_order or self._feed_order
        fields = _batches.Fields(builder.inputs("train"), order, builder.feed_specs)
        before = step if step is not None else bad[0] if bad else None
        contents = self._saver.newest(before=before)
        replayed(builder, contents, self.seed, reader, fields, self._rounds, step)

    def _extra(self) -> dict[str, Any]:
        said = {"handlers": self._handlers.as_json(), "versions": versions()}
        return {**said, PARAMETER_NAMES: self.builder.variable_paths}

    @property
    def _state(self) -> State:
        return self.builder.unpack(self._status.packed)

    @_state.setter
    def _state(self, state: State) -> None:
        self._status.packed = self.builder.pack(state)


def _reason_of(error: BaseException) -> Reason:
    """Return why training ended that an exception ended."""
    return "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "failed"

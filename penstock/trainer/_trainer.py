"""`Trainer`: what a user asks of a training run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from penstock import _batches, _parameters
from penstock._batches import Feed, FeedOrder, ReaderLike
from penstock._checkpoint import CheckpointConfig, Store, as_config
from penstock._errors import check_count
from penstock._interrupts import Interrupts
from penstock._mesh import Place
from penstock._parameter_files import has_parameters, load_parameters
from penstock._selection import Patterns, Rename, Selection
from penstock.events import Handler, combine_handlers
from penstock.program_builder import (
    Objective,
    Optimizer,
    Precision,
    PrecisionName,
    ProgramBuilder,
)
from penstock.program_builder.engine import Engine
from penstock.trainer import _arguments
from penstock.trainer._describe import describe_checkpoint, describe_run
from penstock.trainer._non_finite import Guard, OnNonFinite
from penstock.trainer._processes import Processes
from penstock.trainer._replay import replay_step
from penstock.trainer._run import Run
from penstock.trainer._saver import CheckpointSaver, Saver
from penstock.trainer._shared_batches import OnUnequal
from penstock.trainer._status import HandlerStates, Status
from penstock.trainer._testing import run_test


class Trainer:
    """Train a network written as a program function.

    Every run has `train`; then come `test`, `infer`, `save_params`, `load_params`; after them
    `save_checkpoint`, `stop`, `parameters`, `epoch`, `global_step`; and, seldom, `update_scale`,
    `loss_scale`, `describe`, `replay`, `save_inference_model`. `builder` is the `ProgramBuilder`.

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
      gradient_accumulation_steps: the micro-batches that a device's share of a batch is cut into.
        They run one after the other in the memory of one, with one reduction over the devices.
      freeze: what is not trained: `"backbone"` with all that lies under it, or globs such as
        `"*/w"`. Batch norm whose running statistics match normalises by them and keeps them.
      on_unequal: what a process does whose reader ends before another's: `"pad"` goes on with
        examples that count nothing, `"raise"` ends training and says both counts.

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

    _combine_handlers = staticmethod(combine_handlers)  # `penstock.fluid` changes what handlers see

    def __init__(
        self,
        program_func: Callable[[], object] | Mapping[str, Objective],
        optimizer: Optimizer | None = None,
        *,
        infer_func: Callable[[], object] | None = None,
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
        on_unequal: OnUnequal = "pad",
    ) -> None:
        check_count("steps_per_call", steps_per_call, 1)
        _arguments.check_action(on_non_finite, checkpoint)
        self._on_unequal: OnUnequal = _arguments.check_on_unequal(on_unequal)
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
        self.about: Mapping[str, Any] = {}
        """What `save_params` writes beside the parameters, as JSON: their preprocessing for one."""
        self._on_non_finite: OnNonFinite = on_non_finite
        self._config = as_config(checkpoint)
        self._update_order = _arguments.choose_update_order(self.builder.objectives, schedule)
        self._feed_order, self._interrupts = None, Interrupts()
        self._handlers, self._status = HandlerStates(), Status()
        # None of these may hold the trainer: its device memory would wait for Python's collector.
        self._engine = Engine(self.builder.programs, self.builder.init(seed))
        self._saver = Saver()
        if self._config is not None:
            saves_first = on_non_finite == "roll_back"
            describe = functools.partial(describe_checkpoint, self._handlers, self._engine)
            self._saver = CheckpointSaver(
                self._engine, Store(self._config), describe, saves_first=saves_first
            )
            self._saver.resume(self._status, self._handlers)
        self._processes = Processes(self._engine, self._status, self._saver)
        updates, roll_back = len(self._update_order), self._saver.roll_back
        self._guard = Guard(self._engine, self._status, on_non_finite, roll_back, updates)
        if param_path is not None and self._status.resumed is None:
            # Of several processes those without the folder set what they have: all do the same.
            if has_parameters(param_path):
                self.load_params(param_path)
            elif not self._processes.is_alone:
                self._adopt(self._engine.state.variables)

    def train(
        self,
        reader: ReaderLike,
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
        emit = self._combine_handlers(event_handler)
        _batches.check_reader(reader, num_epochs)
        network = self.builder.programs.network
        network.choose_updates(self._update_order)
        order = feed_order or self._feed_order
        fields = _batches.Fields(network.inputs("train"), order, network.feed_specs)
        self._feed_order = order
        with (
            self._status.running(),
            self._processes.group.inside("trainer.train"),
            self._saver.hold_folder(),
            Interrupts(is_alone=self._processes.is_alone) as self._interrupts,
            self._processes.run(self._interrupts, self.seed, self._list_arguments),
        ):
            run = Run(
                engine=self._engine,
                status=self._status,
                reader=reader,
                fields=fields,
                update_order=self._update_order,
                steps_per_call=self.steps_per_call,
                emit=emit,
                guard=self._guard,
                interrupts=self._interrupts,
                saver=self._saver,
                handlers=self._handlers,
                on_unequal=self._on_unequal,
            )
            run.train(self, event_handler, num_epochs)
        self._saver.raise_failures()

    def test(
        self, reader: ReaderLike, feed_order: FeedOrder | None = None, *, averaged: bool = False
    ) -> Any:
        """Return the mean of the metrics over every example of `reader`, in test mode.

        Each example counts once, whatever the batch size and the number of devices. Waits for the
        device once, at the end.

        Arguments:
          averaged: test the moving average of the parameters that the optimizer keeps.

        Returns:
          The program function's structure, with Python floats for scalars; by objective, where
          there are several.

        Raises:
          FeedError: a batch does not fit the inputs the program declares.
          ReaderError: the reader yields nothing.
          ValueError: no optimizer keeps a moving average.
        """
        _batches.check_reader(reader, 1)
        programs = self.builder.programs
        inputs = programs.network.inputs("test")
        if feed_order is None and set(inputs) <= set(self._feed_order or ()):
            feed_order = self._feed_order
        fields = _batches.Fields(inputs, feed_order, self.builder.feed_specs)
        with self._processes.group.inside("trainer.test"):
            state = self._engine.state
            state = programs.states.average(state) if averaged else state
            return run_test(programs, state, reader, fields, self._interrupts, self._on_unequal)

    def infer(self, feed: Feed) -> Any:
        """Return what `infer_func` returns for a feed of any length, with the live parameters.

        Of several processes all call it, each with examples of its own, as many as the others.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
        """
        with self._processes.call("trainer.infer"):
            return self.builder.infer(self._engine.state, feed)

    def save_params(self, param_path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """Write parameters and running statistics to a folder, which is made or overwritten.

        With what `about` holds, without optimizer state. All processes call it for an average.

        Arguments:
          averaged: write the moving average of the parameters that the optimizer keeps.

        Raises:
          ValueError: no optimizer keeps a moving average.
        """
        state = self._engine.state
        if averaged:
            # An average is a program of all processes; what they hold each of them may write.
            with self._processes.call("trainer.save_params"):
                state = self.builder.programs.states.average(state)
        _parameters.save(param_path, state.variables, about=self.about)

    def load_params(
        self,
        param_path: str | os.PathLike[str],
        *,
        partial: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        rename: Rename = None,
        skip_mismatched: bool = False,
    ) -> dict[str, list[str]]:
        """Read parameters and running statistics from a folder; optimizer state is kept.

        Without options every entry must be there and fit. With one, what was loaded and what was
        not is printed.

        Arguments:
          param_path: what `save_params` wrote, a folder of checkpoints (the newest), or one.
          partial: load what fits in name, shape and dtype, and leave the rest as it is.
          include: names of the program to load, `"backbone"` with all that lies under it, or globs
            such as `"*/w"`; the others stay as they are.
          exclude: names not to load, written the same way.
          rename: beginnings of names in the file and what they are called in the program, such as
            `{"old/encoder": "backbone"}`, or a function from name to name.
          skip_mismatched: leave out entries of another shape or dtype.

        Returns:
          What was `loaded`, and what was not: `excluded`, `missing`, `extra` and `mismatched`.

        Raises:
          FileNotFoundError: there are no parameters at `param_path`.
          UnknownNameError: a pattern or a name to replace matches nothing.
          ParameterError: listing every missing, extra or mismatched entry. Nothing is loaded then.
        """
        selection = Selection(include=include, exclude=exclude, rename=rename)
        table = self.builder.programs.network.table
        variables, report = load_parameters(
            param_path,
            selection,
            table,
            self._engine.state.variables,
            partial=partial,
            skip_mismatched=skip_mismatched,
        )
        self._adopt(variables)
        return report

    def save_checkpoint(self) -> None:
        """Write a checkpoint now, and wait for it; handlers may call it too.

        Raises:
          CheckpointError: it could not be written, or the trainer has no `checkpoint` folder.
        """
        _arguments.check_folder(self._saver.directory)
        with self._processes.call("trainer.save_checkpoint"), self._saver.hold_folder():
            self._saver.save(self._status, is_last=True)
        self._saver.raise_failures()

    def stop(self) -> None:
        """End training after the current `EndStep`, on all processes; no effect outside `train`."""
        self._processes.stop()

    @property
    def parameters(self) -> _parameters.Parameters:
        """The parameters and running statistics by name; see `penstock.Parameters`."""
        return _parameters.Parameters(lambda: self._engine.state.variables, self._adopt)

    @property
    def epoch(self) -> int:
        """The epoch that runs, or runs next, from 0 over all calls of `train`."""
        return self._status.epoch

    @property
    def global_step(self) -> int:
        """Steps done, over all calls of `train`."""
        return self._status.global_step

    @property
    def update_scale(self) -> float:
        """What every update of the parameters is multiplied by, 1 at first; may be set.

        It scales the learning rate of any optimizer, and with it a decoupled weight decay.
        Reading it waits for the device. An optimizer that keeps where its updates lead, such as
        `optax.lookahead`, takes no other than 1.
        """
        return float(jax.device_get(self._engine.state.update_scale))

    @update_scale.setter
    def update_scale(self, scale: float) -> None:
        value = _arguments.read_scale(scale)
        self.builder.programs.network.check_update_scale(float(scale))
        with self._processes.call("setting update_scale"):
            self._engine.set_update_scale(value)

    @property
    def loss_scale(self) -> Any:
        """What the loss is multiplied by for its gradients; by objective, where there are several.

        A dynamic one is read from the state, which waits for the device.
        """
        return _arguments.read_loss_scales(self.builder, self._engine.state)

    def describe(self) -> dict[str, object]:
        """Return what this run is: versions, devices, configuration, number of parameters.

        With a checkpoint folder it is also written there, as `run.json`.
        """
        said = {**self._list_arguments(), "seed": int(self.seed)}
        return describe_run(self.builder, said, self._saver.directory)

    def replay(
        self, reader: ReaderLike, step: int | None = None, feed_order: FeedOrder | None = None
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
        programs, bad = self.builder.programs, self._guard.bad_steps
        order = feed_order or self._feed_order
        network = programs.network
        fields = _batches.Fields(network.inputs("train"), order, network.feed_specs)
        before = step if step is not None else bad[0] if bad else None
        with self._processes.call("trainer.replay"):
            contents = self._saver.newest(before=before)
            replay_step(programs, contents, self.seed, reader, fields, self._update_order, step)

    def save_inference_model(self, param_path: str | os.PathLike[str]) -> None:
        """Do what `save_params` does, Fluid's name; an `Inferencer` brings the network itself."""
        self.save_params(param_path)

    def __repr__(self) -> str:
        return f"<Trainer: epoch {self.epoch}, step {self.global_step}, {self.builder!r}>"

    def _adopt(self, variables: Mapping[str, Any]) -> None:
        with self._processes.call("setting parameters"):
            self._engine.adopt(variables)

    def _list_arguments(self) -> dict[str, object]:
        action, order, config = self._on_non_finite, self._update_order, self._config
        return _arguments.list_arguments(self.builder, order, self.steps_per_call, action, config)

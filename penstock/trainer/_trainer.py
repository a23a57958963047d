"""`Trainer`: what a user asks of a training run."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

from penstock import _parameters, _reader_items
from penstock._checkpoint import CheckpointConfig, Store, as_config
from penstock._errors import (
    CheckpointError,
    FixedAttributes,
    ProgramError,
    check_choice,
    check_int,
    check_known,
    listed,
)
from penstock._files import replacing
from penstock._interrupts import Interrupts
from penstock._mesh import Place, StateSharding
from penstock._parameter_names import Patterns, Rename, Selection, check_patterns, subtract_patterns
from penstock._parameters import has_parameters, load_parameters
from penstock._reader_items import Feed, FeedOrder, ReaderLike
from penstock._version import list_versions
from penstock.events import Handler, combine_handlers
from penstock.program_builder import (
    Objective,
    Optimizer,
    ParameterSharding,
    Precision,
    PrecisionName,
    ProgramBuilder,
)
from penstock.program_builder.engine import Engine, copy_to
from penstock.program_builder.exporting import PLATFORMS, WeightDtype
from penstock.trainer._confidence import check_confidence
from penstock.trainer._in_flight import OnNonFinite
from penstock.trainer._processes import OnUnequal, Processes
from penstock.trainer._replay import replay_step
from penstock.trainer._run import Run, run_test
from penstock.trainer._saver import NoSaver, Saver, Status
from penstock.trainer.model_saving import save_model, with_program
from penstock.trainer.prediction import Prediction

_LOGGER = logging.getLogger("penstock")


class Trainer(FixedAttributes):
    """Train a network written as a program function.

    Most used are `train`, `test`, `predict`, `predict_all`, `infer`, `save_params` and
    `load_params`; then `save_checkpoint`, `stop`, `parameters`, `epoch` and `global_step`. Rarely
    needed are `freeze`, `unfreeze`, `update_scale`, `loss_scale`, `secs_beside`, `describe`,
    `replay`, `save_inference_model` and the attributes `about`, `builder`, `seed` and
    `steps_per_call`.

    Arguments:
      program_func: a function without arguments that calls `layers.*` and returns the loss, or the
        loss first and metrics after it in a tuple, list or dict; or a dict of `Objective`s; or a
        `ProgramBuilder`, whose programs compile once for several trainers, such as those of folds.
      optimizer: an optax transformation, or a zero-argument function that returns one.
      infer_func: what `infer` runs, with the current parameters.
      param_path: parameters to start from, as `load_params` takes them. If there is no such folder
        yet, training starts from initial values and says so.
      place: `None` (every device of the default backend), `"cpu"`, `"gpu"`, `"tpu"`, a device, a
        list of devices, or a `Mesh` with an axis `"data"`.
      schedule: with several objectives, how many updates each makes per batch, in this order, such
        as `{"discriminator": 1, "generator": 2}`; one each by default.
      steps_per_call: how many steps to run in one launch. More than one helps if a step takes less
        than about a millisecond. Events still fire for each step.
      seed: the seed of initial values and of all randomness in the programs; a resumed run keeps
        its own.
      checkpoint: a `CheckpointConfig`, or a folder for a checkpoint per epoch. If the folder has a
        checkpoint, it is restored, and `train` continues with the next sample.
      on_non_finite: what to do if a loss is not finite: `"stop"` raises; `"skip"` skips each update
        whose loss or gradient is not finite; `"roll_back"` restores the last checkpoint and
        continues with the next batch.
      precision: the dtype of the layers' products: `"float32"`, `"bfloat16"`, `"float16"` (with a
        dynamic loss scale), a `ps.Precision`, or `"auto"` (bfloat16 if the accelerator supports
        it). Parameters, optimizer state, statistics and losses are always float32.
      gradient_accumulation_steps: how many micro-batches a batch is split into. They run one after
        another, with the memory of one.
      freeze: what not to train: a prefix such as `"backbone"`, for everything below it, or globs
        such as `"*/w"`. Batch norm with frozen statistics normalises by them and keeps them.
      on_unequal: what to do if one process's reader ends before another's: `"pad"` continues with
        examples that do not count; `"raise"` ends training and names both counts.
      strict: refuse a batch with a column that no program declares. By default such columns are
        carried: one reader of images, labels and file names serves every program.
      state_sharding: `"optimizer"` splits what the optimizer keeps over the devices (ZeRO-1),
        `"full"` the parameters too (FSDP). Each array is split along its largest dimension that the
        devices divide; those of fewer than 4096 numbers stay whole. The numbers are the same.
      parameter_sharding: with a `place` of several axes, pairs of a glob of parameters and the mesh
        axis of each dimension, such as `("*/ffn/in_w", (None, "model"))`. The first that matches
        holds. Layers choose for themselves if the mesh has an axis `"model"`.

    Raises:
      ProgramError: no programs can be derived; raised before any data is read.
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

    __slots__ = {
        "about": "What `save_params` writes as JSON too, such as the preprocessing; can be set.",
        "builder": "The `ProgramBuilder`.",
        "seed": "The seed of initial values and of all randomness in the programs.",
        "steps_per_call": "How many steps run in one launch.",
    }
    _settable = frozenset({"about"})
    _combine_handlers = staticmethod(combine_handlers)  # `penstock.fluid` changes what handlers see

    def __init__(
        self,
        program_func: Callable[[], object] | Mapping[str, Objective] | ProgramBuilder[Any],
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
        strict: bool = False,
        state_sharding: StateSharding = None,
        parameter_sharding: ParameterSharding = (),
    ) -> None:
        # What can be wrong is told first; parameters come last, where no checkpoint brought any.
        check_int("steps_per_call", steps_per_call, 1)
        check_choice("Trainer got on_non_finite=", on_non_finite, get_args(OnNonFinite))
        check_choice("Trainer got on_unequal=", on_unequal, get_args(OnUnequal))
        if on_non_finite == "roll_back" and checkpoint is None:
            raise ValueError(
                "on_non_finite got 'roll_back' without checkpoints, expected checkpoint=... beside "
                "it: it returns to the last of them."
            )
        self._on_unequal: OnUnequal = on_unequal
        options: dict[str, Any] = {
            "optimizer": optimizer,
            "infer_func": infer_func,
            "place": place,
            "precision": precision,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "freeze": freeze,
            "strict": strict,
            "state_sharding": state_sharding,
            "parameter_sharding": parameter_sharding,
        }
        skips = on_non_finite == "skip"
        if isinstance(program_func, ProgramBuilder):
            _check_shared(program_func, options, skips)
            # Of its own, as `freeze` changes what a builder runs.
            self.builder = copy.copy(program_func)
        else:
            self.builder = ProgramBuilder(program_func, skips_non_finite=skips, **options)
        self.steps_per_call, self.seed = int(steps_per_call), seed
        self.about: Mapping[str, Any] = {}
        self._on_non_finite: OnNonFinite = on_non_finite
        self._config = as_config(checkpoint)
        order = choose_update_order(self.builder.objectives, schedule)
        frozen = self.builder.programs.options.freeze
        self._status = Status(freeze=frozen)
        # None of these may hold the trainer: its device memory would wait for Python's collector.
        state = self.builder.init(seed)
        self._engine = Engine(self.builder.programs, state, order)
        self._saver: Saver = NoSaver()
        if self._config is not None:
            saves_first = on_non_finite == "roll_back"
            self._saver = Saver(self._engine, Store(self._config), saves_first=saves_first)
            self._saver.resume(self._status)
        self._group = self._engine.programs.group
        self._interrupts = Interrupts(is_alone=self._group.count == 1)
        self._processes = Processes(self._engine, self._status, self._saver, self._interrupts)
        if param_path is not None and self._status.resumed is None:
            is_here = has_parameters(param_path)
            is_anywhere = any(self._group.exchange("Trainer(param_path=...)", is_here))
            if is_here:
                self.load_params(param_path)
            # Setting parameters is a call of all processes: those without the folder set their own.
            elif is_anywhere:
                self._adopt(self._engine.state.variables)

    def train(
        self,
        reader: ReaderLike,
        event_handler: Handler | Sequence[Handler] | None = None,
        num_epochs: int = 1,
        feed_order: FeedOrder | None = None,
    ) -> None:
        """Train for `num_epochs` passes over `reader`; `penstock.events` shows the loop.

        Another call continues training: parameters, optimizer state, and the numbers of epochs and
        steps are kept. A program that runs again with the same checkpoint folder continues where it
        ended. Ctrl-C and SIGTERM end training after the current step; a second one, immediately.

        Arguments:
          reader: yields batches, again on every pass: a zero-argument function that returns an
            iterator, an iterable, or an object with a method `iterate(epoch)`, as penstock's
            readers. A batch is a dict, tuple or list of arrays, or a list of samples. What a
            generator yields is copied; a reader with `set_state`, and one behind a decorator, must
            not change arrays that it has already yielded.
          event_handler: a function that takes an event, or a list of them; see `penstock.handlers`.
          num_epochs: how many more epochs to train; a resumed run, those that remain.
          feed_order: the names of a tuple's fields, or a dict from name to index; `test` uses it.

        Raises:
          ProgramError: an objective has no optimizer.
          FeedError: a batch does not fit the inputs the program declares.
          ReaderError: the reader yields nothing, or cannot be read again.
          NonFiniteError: a loss was nan or infinite.
          CheckpointError: checkpoints could not be written; raised when training has ended.
        """
        fields = self._choose_fields("train", feed_order)
        _reader_items.check_reader(reader, num_epochs)
        emit = self._combine_handlers(event_handler)
        if self._status.resumed_leaves:
            self._return_to_checkpoint()
        if self._status.freeze != self.builder.programs.options.freeze:
            self._apply_freeze()
        programs = self.builder.programs
        programs.choose_updates(self._engine.update_order)
        self._status.feed_order = fields.order
        with (
            self._status.running(),
            self._group.inside("trainer.train"),
            self._saver.hold_folder(),
            self._interrupts,
            self._processes.run(self.seed, self._list_arguments),
        ):
            run = Run(
                processes=self._processes,
                reader=reader,
                fields=fields,
                steps_per_call=self.steps_per_call,
                emit=emit,
                on_non_finite=self._on_non_finite,
                on_unequal=self._on_unequal,
            )
            run.train(self, event_handler, num_epochs)
            # Within the call: the other processes are told of it as of any other failure.
            self._saver.raise_failures()

    def test(
        self,
        reader: ReaderLike,
        feed_order: FeedOrder | None = None,
        *,
        averaged: bool = False,
        confidence: float | None = None,
    ) -> Any:
        """Return the mean of the metrics over all examples of `reader`, in test mode.

        Each example counts once, on any number of devices. The method waits for the device at the
        end. It always reads pass 0 of penstock's readers, so a test on the training reader does not
        change the order of training.

        Arguments:
          feed_order: as for `train`, whose order is the default.
          averaged: test the optimizer's moving average of the parameters.
          confidence: such as 0.95: return a `penstock.metrics.Interval` in place of each value,
            with ends between which the value of all data lies so often. Examples count as draws
            from them: of means by their variance, of other metrics by a bootstrap. The program
            runs a second time, for each example by itself.

        Returns:
          The metrics in the program function's structure, with Python floats for scalars; with
          several objectives, a dict by objective.

        Raises:
          FeedError: a batch does not fit the inputs the program declares.
          ReaderError: the reader yields nothing.
          ValueError: no optimizer keeps a moving average.
        """
        check_confidence(confidence)
        _reader_items.check_reader(reader, 1)
        programs = self.builder.programs
        fields = self._choose_fields("test", feed_order)
        with self._group.inside("trainer.test"), self._beside_steps():
            state = self._engine.state
            state = programs.states.average(state) if averaged else state
            interrupts, on_unequal = self._interrupts, self._on_unequal
            return run_test(programs, state, reader, fields, interrupts, on_unequal, confidence)

    def predict(
        self, reader: ReaderLike, keep: Sequence[str] = (), feed_order: FeedOrder | None = None
    ) -> Generator[Any, None, None]:
        """Yield what `infer_func` returns for each batch of `reader`, as NumPy arrays.

        The next batches are computed while one is fetched and used, so memory does not grow with
        the reader. The short last batch is padded where rows do not depend on each other. It reads
        pass 0 of penstock's readers, as `test` does. With several processes, all must iterate, each
        over its part of the reader to the end.

        Arguments:
          reader: as for `train`; columns that `infer_func` does not declare may be there.
          keep: columns of the reader to have beside the outputs, such as `["id", "label"]`.
          feed_order: as for `train`, whose order is the default.

        Yields:
          The outputs of a batch, in the structure of `infer_func`. With `keep`, a dict of columns:
          those of the reader and the outputs, by their keys, else `output`, or `output_0` and so
          on.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
          FeedError: a batch does not fit the declared inputs, or lacks a column to keep.
          ReaderError: the reader yields nothing.

        >>> import numpy as np, optax
        >>> from penstock import layers, readers
        >>> def infer_program():
        ...     return layers.fc(layers.data("x", shape=[2]), size=3, act="softmax")
        >>> def train_program():
        ...     label = layers.data("label", shape=[1], dtype="int32")
        ...     return layers.mean(layers.cross_entropy(infer_program(), label))
        >>> trainer = Trainer(train_program, optax.sgd(0.1), infer_func=infer_program)
        >>> data = {"x": np.ones((5, 2), "float32"), "id": np.arange(5)}
        >>> for batch in trainer.predict(readers.arrays(data, batch_size=2), keep=["id"]):
        ...     print(batch["id"], batch["output"].shape)
        [0 1] (2, 3)
        [2 3] (2, 3)
        [4] (1, 3)
        """
        return self._make_prediction("trainer.predict", reader, keep, feed_order).iterate()

    def predict_all(
        self, reader: ReaderLike, keep: Sequence[str] = (), feed_order: FeedOrder | None = None
    ) -> Any:
        """Return what `predict` yields, joined over all batches in the order of the reader.

        With several processes, each of them gets the rows of all.

        Arguments:
          reader: as for `predict`, and the other arguments.

        Returns:
          Arrays `[N, ...]` in the structure of `infer_func`; with `keep` a dict of columns.

        Raises:
          ProgramError: an output has no row for each example.
        """
        return self._make_prediction("trainer.predict_all", reader, keep, feed_order).join()

    def infer(self, feed: Feed) -> Any:
        """Return what `infer_func` returns, as NumPy arrays, with the current parameters.

        Another thread may call it while this one trains: it gets the parameters between two steps,
        and the next step waits for it. With several processes, all must call it, in the thread that
        trains, each with the same number of its own examples.

        Arguments:
          feed: a dict from input name to array `[B, ...]`, with any B.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
        """
        with self._processes.call("trainer.infer"), self._engine.between_launches() as state:
            return self.builder.infer(state, feed)

    def save_params(self, param_path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """Write parameters and running statistics to a folder, which is created or overwritten.

        Optimizer state is not written. With several processes, all must call it if `averaged=True`
        or if parameters are split over them.

        Arguments:
          averaged: write the optimizer's moving average of the parameters.

        Raises:
          ValueError: no optimizer keeps a moving average.
        """
        state, states = self._engine.state, self.builder.programs.states
        # An average is a program of all processes, as is to put together what they share; what all
        # of them hold one may write alone.
        is_shared = averaged or states.is_split
        call = self._processes.call("trainer.save_params") if is_shared else nullcontext()
        with call, self._beside_steps():
            state = states.average(state) if averaged else state
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

        Without options, every entry must be present and fit. With an option, a report of what was
        loaded is printed.

        Arguments:
          param_path: a folder of `save_params`, a checkpoint, a folder of them, or a run's folder.
          partial: load the entries that fit in name, shape and dtype, and keep the rest.
          include: names of the program to load: a prefix such as `"backbone"`, for everything below
            it, or globs such as `"*/w"`. The others keep their values.
          exclude: names not to load, in the same form.
          rename: a dict from prefixes in the file to prefixes in the program, such as
            `{"old/encoder": "backbone"}`, or a function from name to name.
          skip_mismatched: skip entries of another shape or dtype.

        Returns:
          Lists of names: `loaded`, `excluded`, `missing`, `extra` and `mismatched`.

        Raises:
          FileNotFoundError: there are no parameters at `param_path`.
          UnknownNameError: a pattern or a prefix matches nothing.
          ParameterError: entries are missing, extra or mismatched; lists all. Nothing is loaded.
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
        """Write a checkpoint now, and wait until it is written; handlers may call it too.

        At `EndEpoch` it is of the moment before that event: a rerun ends the epoch again, so that
        all handlers see its end once.

        Raises:
          CheckpointError: it could not be written, or the trainer has no `checkpoint` folder.
        """
        if self._saver.directory is None:
            raise CheckpointError(
                "save_checkpoint got no folder to write to, expected "
                "Trainer(..., checkpoint='runs/a') or a ps.CheckpointConfig."
            )
        call = self._processes.call("trainer.save_checkpoint")
        with call, self._saver.hold_folder(), self._beside_steps():
            self._saver.save(self._status, is_last=True)
        self._saver.raise_failures()

    def stop(self) -> None:
        """End training after the current `EndStep`, on all processes; no effect outside `train`."""
        self._status.is_stop_wanted = True

    @property
    def parameters(self) -> _parameters.Parameters:
        """The parameters and running statistics by name; see `penstock.Parameters`."""
        variables = lambda: self._engine.state.variables  # noqa: E731
        return _parameters.Parameters(variables, self._adopt, self._processes.call)

    @property
    def epoch(self) -> int:
        """The current or next epoch, counted from 0 over all calls of `train`."""
        return self._status.epoch

    @property
    def global_step(self) -> int:
        """Steps done, over all calls of `train`."""
        return self._status.global_step

    @property
    def secs_beside(self) -> float:
        """Seconds so far in `test`, `save_params` and `save_checkpoint`, compiles included.

        Handlers that show times take them off those of steps.
        """
        return self._status.secs_beside

    @contextmanager
    def _beside_steps(self) -> Generator[None, None, None]:
        """Count the seconds of what is no step; those that still run are waited for before."""
        jax.block_until_ready(self._engine.state)
        start = time.monotonic()
        try:
            yield
        finally:
            self._status.secs_beside += time.monotonic() - start

    def freeze(self, patterns: str | Sequence[str]) -> None:
        """Stop training some parameters, from the next call of `train` on.

        What the optimizers keep of the parameters that are still trained stays, bit for bit, and so
        do counts of updates, `update_scale`, loss scales and the number of steps. A script that is
        resumed from a checkpoint calls `freeze` and `unfreeze` again at the same places. The next
        step is compiled anew. With several processes, all must call it.

        Arguments:
          patterns: as the argument `freeze` of `Trainer`, and in addition to it.

        Raises:
          UnknownNameError: a pattern matches nothing.
          ProgramError: an objective would have nothing to train, or its optimizer keeps one state
            for all parameters together.
          RuntimeError: `train` runs.

        >>> import optax
        >>> from penstock import layers
        >>> def train_program():
        ...     hidden = layers.fc(layers.data("x", shape=[2]), size=3, name="backbone")
        ...     return layers.mean(layers.fc(hidden, size=1, name="head"))
        >>> trainer = Trainer(train_program, optax.adam(0.1))
        >>> trainer.freeze("backbone")
        >>> [row.name for row in trainer.builder.parameter_table() if row.is_trainable]
        ['head/w', 'head/b']
        >>> trainer.unfreeze("*/b")
        >>> [row.name for row in trainer.builder.parameter_table() if row.is_trainable]
        ['backbone/b', 'head/w', 'head/b']
        """
        names = [patterns] if isinstance(patterns, str) else list(patterns)
        self._set_freeze("freeze", names, (*self._status.freeze, *names))

    def unfreeze(self, patterns: str | Sequence[str] = "*") -> None:
        """Train frozen parameters from the next call of `train` on; by default all of them.

        What the optimizers keep of them begins again, and the count of updates goes on. So Adam's
        updates of them are up to 6.6 times as long as its learning rate says, after 100 still 3.2
        times: lower `update_scale`. Parameters of `trainable=False` stay. See `freeze`.

        Arguments:
          patterns: as the argument `freeze` of `Trainer`.

        Raises:
          UnknownNameError: a pattern matches nothing.
          ProgramError: an optimizer keeps one state for all parameters together.
          RuntimeError: `train` runs.
        """
        names = [patterns] if isinstance(patterns, str) else list(patterns)
        table = self.builder.programs.network.table
        self._set_freeze("unfreeze", names, subtract_patterns(self._status.freeze, names, table))

    @property
    def update_scale(self) -> float:
        """The factor of every parameter update, 1 at first; can be set.

        It scales the learning rate of any optimizer, and a decoupled weight decay with it. Reading
        it waits for the device. Optimizers that keep a copy of the parameters, such as
        `optax.lookahead`, only accept 1.
        """
        return float(jax.device_get(self._engine.state.update_scale))

    @update_scale.setter
    def update_scale(self, scale: float) -> None:
        value = read_scale(scale)
        self.builder.programs.network.check_update_scale(float(scale))
        # It is often set to what it is.
        if self._status.is_passed_over and float(value) != self.update_scale:
            self._keep_checkpoint()
        with self._processes.call("setting update_scale"):
            copied = copy_to(value, self.builder.mesh)
            self._engine.state = self._engine.state._replace(update_scale=copied)

    @property
    def loss_scale(self) -> Any:
        """The loss scale, by objective if there are several; waits for the device if dynamic."""
        fixed, live = self.builder.programs.options.precision.loss_scale, {}
        for name, loss_scale in self._engine.state.loss_scale.items():
            live[name] = float(loss_scale.scale)
        scales = {name: live.get(name, fixed) for name in self.builder.objectives}
        return next(iter(scales.values())) if len(scales) == 1 else scales

    def describe(self) -> dict[str, object]:
        """Return versions, devices, configuration, parameters and compilations of this run.

        Of each compilation: the program, the batch size, the seconds that the caller waited, and,
        where it was not the first, or the first after `freeze`, why there was another.

        If there is a checkpoint folder, it is also written there as `run.json`.
        """
        arguments = {**self._list_arguments(), "seed": int(self.seed)}
        return describe_run(self.builder, arguments, self._saver.directory)

    def replay(
        self, reader: ReaderLike, step: int | None = None, feed_order: FeedOrder | None = None
    ) -> None:
        """Run the step whose loss or gradient was not finite again, with JAX's NaN debugging.

        It starts from the last checkpoint before that step, or from the initial values, and raises
        JAX's `FloatingPointError` at the operation that produced the first NaN. The trainer's own
        state does not change. With several processes, all must call it.

        Arguments:
          reader: the reader of the run, which must yield the same batches again.
          step: the global step; by default the first whose loss or gradient is not finite.

        Raises:
          FloatingPointError: names the step; its cause shows the line of the program function.
        """
        if step is not None:
            check_int("replay step", step, 0)
        programs, bad = self.builder.programs, self._status.bad_steps
        fields = self._choose_fields("train", feed_order)
        before = step if step is not None else bad[0] if bad else None
        with self._processes.call("trainer.replay"):
            contents = self._saver.newest(before=before)
            order, state = self._engine.update_order, programs.states.init(self.seed)
            replay_step(Engine(programs, state, order), contents, reader, fields, step)

    def save_inference_model(
        self,
        path: str | os.PathLike[str],
        infer_func: Callable[[], object] | None = None,
        names: Sequence[str] | None = None,
        *,
        vocabulary: Mapping[str, int] | None = None,
        weights: WeightDtype = "float32",
        measure_on: _reader_items.ReaderLike | None = None,
        platforms: Sequence[str] = PLATFORMS,
        averaged: bool = False,
    ) -> None:
        """Write a file that holds the infer program and its weights, for `ps.InferenceModel`.

        Nothing of the code that made it is needed to run it: `penstock serve` serves it, and JAX
        alone reads it. Where `trainer.about` names the preprocessing of the images, as a run of
        `penstock train` does, the file takes pictures. Collective.

        Arguments:
          path: a file, which is replaced.
          infer_func: the program to write, by default the trainer's own.
          names: the names of classes, in the order of the last axis of the first output.
          vocabulary: the id of each word, `"<unk>"` that of all others, where the input is of
            sequences: the file then takes sentences, in small letters.
          weights: `"bfloat16"` keeps half the bytes of the parameters, `"int8"` a quarter.
          measure_on: a reader; how far its answers are from those of `"float32"` is written too.
          platforms: what it is to run on.
          averaged: write the optimizer's moving average of the parameters.

        Raises:
          ProgramError: there is no infer function, or it does what no file can hold.
          ValueError: `names` or `vocabulary` does not fit the program.
        """
        with self._processes.call("trainer.save_inference_model"):
            states, state = self.builder.programs.states, self._engine.state
            state = states.average(state) if averaged else state
            # Of parameters that were loaded the trainer does not know the steps.
            steps = {"global_step": self.global_step} if self.global_step else {}
            programs, variables = self.builder.programs, state.variables
            if infer_func is not None:
                programs, variables = with_program(programs, variables, infer_func)
            save_model(
                path,
                programs,
                variables,
                names=names,
                vocabulary=vocabulary,
                about={**self.about, **steps},
                weights=weights,
                platforms=platforms,
                measure_on=measure_on,
                feed_order=self._status.feed_order,
            )

    def __repr__(self) -> str:
        return f"<Trainer: epoch {self.epoch}, step {self.global_step}, {self.builder!r}>"

    def _choose_fields(self, mode: str, feed_order: FeedOrder | None) -> _reader_items.Fields:
        """Return the inputs of a mode, a tuple's in the order of training where it has them all."""
        inputs = self.builder.programs.network.inputs[mode]
        if feed_order is None and set(inputs) <= set(self._status.feed_order or ()):
            feed_order = self._status.feed_order
        return _reader_items.Fields(inputs, feed_order)

    def _make_prediction(
        self, owner: str, reader: ReaderLike, keep: Sequence[str], feed_order: FeedOrder | None
    ) -> Prediction:
        return Prediction(
            programs=self.builder.programs,
            variables=self._engine.state.variables,
            reader=reader,
            feed_order=self._choose_fields("predict", feed_order).order,
            keep=keep,
            owner=owner,
            interrupts=self._interrupts,
            on_unequal=self._on_unequal,
        )

    def _adopt(self, variables: Mapping[str, Any]) -> None:
        with self._processes.call("setting parameters"):
            self._processes.check_alike(variables)
            self._keep_checkpoint()
            self._engine.state = self.builder.adopt(variables, self._engine.state)

    def _keep_checkpoint(self) -> None:
        """Keep a resumed state, where a script sets again what it had set before the checkpoint."""
        status = self._status
        if status.is_passed_over and not status.resumed_leaves:
            status.resumed_leaves = list(self._engine.leaves)

    def _return_to_checkpoint(self) -> None:
        """Take the state of the checkpoint that this call of `train` goes on from."""
        if self._status.is_over:
            return
        leaves, self._status.resumed_leaves = self._status.resumed_leaves, []
        if not self._status.is_replayed:
            return
        self._engine.leaves = list(leaves)
        _LOGGER.warning(
            "training goes on with the parameters and update_scale of the checkpoint: what was set "
            "before this call of train is of the run that wrote it. To go on from other values, "
            "set them in a handler at BeginTraining, or give the run another folder."
        )

    def _set_freeze(self, method: str, patterns: list[str], frozen: tuple[str, ...]) -> None:
        if self._status.is_running:
            raise RuntimeError(
                f"trainer.{method} got called while train runs, expected between two calls of it. "
                "What a step trains is compiled. End the run with trainer.stop(), and call it "
                "before the next trainer.train(...)."
            )
        check_patterns(f"trainer.{method}", patterns, self.builder.programs.network.table)
        with self._processes.call(f"trainer.{method} of {listed(patterns)}"):
            before, self._status.freeze = self._status.freeze, frozen
            # A resumed script passes over calls of `train`, and its state is of a later one.
            if not self._status.is_replayed:
                try:
                    self._engine.freeze(frozen)
                except ProgramError:
                    self._status.freeze = before
                    raise

    def _apply_freeze(self) -> None:
        """Train what the script says by now, where a checkpoint was of another choice."""
        network = self.builder.programs.network
        # A call that is passed over trains nothing, and the state is of a later one.
        if self._status.is_over or network.with_freeze(self._status.freeze) is network:
            return
        with self._processes.call("trainer.train with another freeze"):
            _LOGGER.warning(
                "the checkpoint was written with %s frozen, training goes on with %s: what the "
                "optimizer keeps of parameters that were frozen begins at zero",
                listed(network.options.freeze),
                listed(self._status.freeze),
            )
            self._engine.freeze(self._status.freeze)

    def _list_arguments(self) -> dict[str, object]:
        options, config = self.builder.programs.options, self._config
        return {
            "objectives": list(self.builder.objectives),
            "schedule": list(self._engine.update_order),
            "steps_per_call": self.steps_per_call,
            "on_non_finite": self._on_non_finite,
            "precision": str(options.precision),
            "gradient_accumulation_steps": options.num_micro_batches,
            "freeze": list(options.freeze),
            "checkpoint": None if config is None else config.as_json(),
        }


def _check_shared(
    builder: ProgramBuilder[Any], options: Mapping[str, object], skips_non_finite: bool
) -> None:
    """Raise unless a trainer leaves it to the builder what programs are made with."""
    if not builder.objectives:
        raise ProgramError("Trainer got a ProgramBuilder without program_func, expected one.")
    defaults = inspect.signature(Trainer).parameters
    wrong = [name for name, value in options.items() if value != defaults[name].default]
    if skips_non_finite != builder.programs.options.skips_non_finite:
        wrong.append("on_non_finite")
    if wrong:
        raise ValueError(
            f"Trainer got a ProgramBuilder and {listed(wrong)}, expected what the builder was made "
            "with. Its programs are compiled once for all its trainers. Pass such arguments to "
            "ProgramBuilder alone; on_non_finite='skip' needs skips_non_finite=True there."
        )


def choose_update_order(
    objectives: Mapping[str, Objective], schedule: Mapping[str, int] | None
) -> tuple[str, ...]:
    """Return the objectives' names in the order of their updates of one batch."""
    if schedule is None:
        return tuple(objectives)
    for name, count in schedule.items():
        check_known("schedule", name, objectives)
        check_int(f"schedule of {name!r}", count, 0)
    # All updates of one objective in a row: as many critic steps, then one generator step.
    order = tuple(name for name, count in schedule.items() for _ in range(count))
    if not order:
        raise ValueError(f"schedule got {dict(schedule)}, expected at least one update.")
    return order


def read_scale(value: float) -> np.ndarray:
    """Return the scale of updates that a value stands for, float32 without axes."""
    try:
        # A string of digits would become a number, and an array of one element too.
        is_number = np.ndim(value) == 0 and not isinstance(value, str)
        # As it is kept: what float32 cannot hold is no finite number there.
        with np.errstate(over="ignore"):
            scale = np.float32(float(value)) if is_number else np.float32(np.nan)
    except (TypeError, ValueError, OverflowError):
        scale = np.float32(np.nan)
    if not np.isfinite(scale) or scale < 0:
        raise ValueError(
            f"update_scale got {value!r}, expected a finite number of 0 or more. It scales updates."
        )
    return np.asarray(scale)


FILE = "run.json"


def describe_run(
    builder: ProgramBuilder, configuration: Mapping[str, object], directory: Path | None
) -> dict[str, object]:
    """Return the description of a run; process 0 writes it to `directory` too, if there is one."""
    rows = builder.parameter_table()
    trainable = sum(int(np.prod(row.shape)) for row in rows if row.is_trainable)
    devices = list(builder.mesh.devices.flat)
    description = {
        "versions": list_versions(),
        "devices": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
            "processes": jax.process_count(),
        },
        "configuration": configuration,
        "parameters": {
            "trainable": trainable,
            "all": sum(int(np.prod(row.shape)) for row in rows),
            "table": [
                {"name": row.name, "shape": list(row.shape), "dtype": row.dtype} for row in rows
            ],
        },
        "compilations": [compilation._asdict() for compilation in builder.programs.compilations],
    }
    # The folder is shared by all processes, and what they would write is the same.
    if directory is not None and not jax.process_index():
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / FILE) as temporary:
            temporary.write_text(json.dumps(description, indent=1) + "\n")
    return description

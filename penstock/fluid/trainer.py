"""`Trainer` and `CheckpointConfig` under the names and in the order of Fluid's last release."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np

from penstock import program_builder, trainer
from penstock._checkpoint import CheckpointConfig as Config
from penstock._errors import check_int, check_type
from penstock._mesh import Place, StateSharding
from penstock._program.inputs import Feed
from penstock._reader_items import FeedOrder
from penstock.events import BeginEpochEvent as BeginEpochEvent
from penstock.events import BeginStepEvent as BeginStepEvent
from penstock.events import EndEpochEvent as EndEpochEvent
from penstock.events import EndStepEvent as EndStepEvent
from penstock.events import Handler, ReaderLike, combine_handlers
from penstock.fluid._fetched import as_fetched, with_metrics
from penstock.fluid.core import choose_devices

__all__ = [
    "Trainer",
    "BeginEpochEvent",
    "EndEpochEvent",
    "BeginStepEvent",
    "EndStepEvent",
    "CheckpointConfig",
]

Path = str | os.PathLike[str]
T = TypeVar("T")
U = TypeVar("U")
ProgramFunc = Callable[[], Any] | Mapping[str, program_builder.Objective]


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When a `Trainer` writes checkpoints, in Fluid's terms; see `penstock.CheckpointConfig`.

    It differs from Fluid's class. Checkpoints are kept when training ends, and a second run of the
    same script resumes from them; if the first run was complete, the second has nothing to do. A
    checkpoint is always written at the end. The two intervals are independent. The default folder
    is `checkpoints`, not the current directory.

    Arguments:
      checkpoint_dir: the folder, `checkpoints` by default.
      max_num_checkpoints: how many checkpoints are kept, the newest ones.
      epoch_interval: write at the end of every `epoch_interval`-th epoch.
      step_interval: write after every `step_interval`-th step.

    Raises:
      ValueError: a number is not a positive integer.

    >>> CheckpointConfig("runs/a", epoch_interval=2)
    CheckpointConfig(checkpoint_dir='runs/a', max_num_checkpoints=3, epoch_interval=2, \
step_interval=10)
    """

    checkpoint_dir: Path | None = None
    max_num_checkpoints: int = 3
    epoch_interval: int = 1
    step_interval: int = 10

    def __post_init__(self) -> None:
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            check_int(f"fluid.CheckpointConfig {name}", getattr(self, name), 1)

    def as_config(self) -> Config:
        """Return the equivalent `penstock.CheckpointConfig`."""
        # Both intervals hold. Fluid saved every `step_interval` steps of every `epoch_interval`-th
        # epoch.
        return Config(
            directory="checkpoints" if self.checkpoint_dir is None else self.checkpoint_dir,
            max_to_keep=self.max_num_checkpoints,
            save_interval_epochs=self.epoch_interval,
            save_interval_steps=self.step_interval,
        )


class Trainer(trainer.Trainer):
    """Train a network written as a program function; `penstock.Trainer` with Fluid's arguments.

    The argument names are those of the last release with this interface (August 2018). The names
    of the draft before it work too: `program_func` for `train_func`, `optimizer` for
    `optimizer_func`. Pass only one of each pair. `event.metrics` and the results of `test` and
    `infer` are lists of arrays, even for a single value. If a program function returns a dict,
    they are dicts.

    Arguments:
      train_func: a function without arguments that calls `fluid.layers.*` and returns the loss, or
        a list of the loss followed by metrics.
      optimizer_func: a function without arguments that returns an optimizer; or an optimizer.
      param_path: a folder of parameters to start from. If it does not exist yet, training starts
        from initial values, and a log line says so.
      place: `fluid.CPUPlace()`, `fluid.CUDAPlace(0)`, or what `penstock.Trainer` takes. By
        default, the first device of the default backend.
      parallel: use every device of that kind, as several processes always do. Each batch of the
        reader is split over them.
      checkpoint_config: a `fluid.CheckpointConfig`.
      program_func: the draft's name for `train_func`.
      optimizer: the draft's name for `optimizer_func`.
      infer_func: what `infer` runs. This and the arguments below are those of `penstock.Trainer`.
      checkpoint: a folder or a `penstock.CheckpointConfig`, instead of `checkpoint_config`.

    Raises:
      TypeError: an argument is missing, given under two names, or of the wrong type.
      ProgramError: no programs can be derived from the functions; raised before data is read.

    >>> def train_program():
    ...     x = fluid.layers.data(name="x", shape=[1])
    ...     y = fluid.layers.data(name="y", shape=[1])
    ...     prediction = fluid.layers.fc(input=x, size=1)
    ...     return fluid.layers.mean(fluid.layers.square_error_cost(input=prediction, label=y))
    >>> trainer = Trainer(train_func=train_program, optimizer_func=lambda: fluid.optimizer.SGD(0.1))
    >>> reader = lambda: [[([1.0], [2.0]), ([2.0], [4.0])]]
    >>> trainer.train(50, lambda event: None, reader, ["x", "y"])
    >>> [cost] = trainer.test(reader, ["x", "y"])
    >>> bool(cost < 0.5)
    True
    """

    __slots__ = ()

    def __init__(
        self,
        train_func: ProgramFunc | None = None,
        optimizer_func: program_builder.Optimizer | None = None,
        param_path: Path | None = None,
        place: Place = None,
        parallel: bool = False,
        checkpoint_config: CheckpointConfig | None = None,
        *,
        program_func: ProgramFunc | None = None,
        optimizer: program_builder.Optimizer | None = None,
        infer_func: Callable[[], object] | None = None,
        checkpoint: Config | Path | None = None,
        schedule: Mapping[str, int] | None = None,
        steps_per_call: int = 1,
        seed: int = 0,
        on_non_finite: Literal["stop", "skip", "roll_back"] = "stop",
        precision: program_builder.PrecisionName | program_builder.Precision = "auto",
        gradient_accumulation_steps: int = 1,
        freeze: str | Sequence[str] = (),
        on_unequal: Literal["pad", "raise"] = "pad",
        strict: bool = False,
        state_sharding: StateSharding = None,
        parameter_sharding: program_builder.ParameterSharding = (),
    ) -> None:
        # Both names of an argument are an error, but train_func goes with optimizer: the first
        # argument by position belongs to the release's signature and to the draft's.
        program = _pick("train_func", train_func, "program_func", program_func)
        if program is None:
            raise TypeError(
                "fluid.Trainer got no train_func, expected a function without arguments that "
                "returns the loss. The programs are derived from it."
            )
        _check_kinds(param_path, checkpoint_config)
        config = _pick("checkpoint_config", checkpoint_config, "checkpoint", checkpoint)
        super().__init__(
            program,
            _pick("optimizer_func", optimizer_func, "optimizer", optimizer),
            infer_func=infer_func,
            param_path=param_path,
            place=choose_devices("fluid.Trainer", place, parallel),
            schedule=schedule,
            steps_per_call=steps_per_call,
            seed=seed,
            checkpoint=config.as_config() if isinstance(config, CheckpointConfig) else config,
            on_non_finite=on_non_finite,
            precision=precision,
            gradient_accumulation_steps=gradient_accumulation_steps,
            freeze=freeze,
            on_unequal=on_unequal,
            strict=strict,
            state_sharding=state_sharding,
            parameter_sharding=parameter_sharding,
        )

    def train(  # pyright: ignore[reportIncompatibleMethodOverride]: the order is Fluid's
        self,
        num_epochs: int = 1,
        event_handler: Handler | Sequence[Handler] | None = None,
        reader: ReaderLike | None = None,
        feed_order: FeedOrder | None = None,
    ) -> None:
        """Train for `num_epochs` passes over `reader`; see `penstock.Trainer.train`.

        Arguments:
          num_epochs: number of passes.
          event_handler: a function that takes an event, or a list of such functions.
            `event.metrics` is a list of arrays, empty if `fetch_metrics` was set to `False`.
          reader: a reader of batches, from `penstock.readers.batch` or any other.
          feed_order: the input names in the order of a sample's fields, or a dict of name to index.

        Raises:
          TypeError: an argument is missing or in the wrong position.
        """
        order = "Its order is train(num_epochs, event_handler, reader, feed_order)"
        expected = f"an integer. {order}, not that of penstock.Trainer. Name the arguments."
        check_type("fluid.Trainer.train got num_epochs=", num_epochs, int | np.integer, expected)
        # None only because the arguments before it, in Fluid's order, have defaults. It is refused.
        super().train(cast("ReaderLike", reader), event_handler, num_epochs, feed_order)

    def test(
        self,
        reader: ReaderLike,
        feed_order: FeedOrder | None = None,
        *,
        averaged: bool = False,
        confidence: float | None = None,
    ) -> Any:
        """Return the means of the loss and the metrics over `reader`, a list of arrays.

        Every example counts once; Fluid averaged the means of batches. With several objectives the
        result is a dict of such lists.

        Arguments:
          reader: a reader of batches.
          feed_order: the input names in the order of a sample's fields; by default those of
            `train`.
          averaged: test the moving average of the parameters that the optimizer keeps.
          confidence: return intervals, see `penstock.Trainer.test`.
        """
        means = super().test(reader, feed_order, averaged=averaged, confidence=confidence)
        return means if confidence else self._convert(means)

    def infer(self, feed: Feed) -> Any:
        """Run `infer_func` on a feed with the current parameters, and return a list of arrays.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
        """
        return as_fetched(super().infer(feed))

    def save_inference_model(  # pyright: ignore[reportIncompatibleMethodOverride]: Fluid's arguments
        self,
        param_path: Path,
        feeded_var_names: Sequence[str] | None = None,
        target_var_indexes: Sequence[int] | None = None,
    ) -> None:
        """Write the parameters, as `save_params` does.

        The network is not saved: an `Inferencer` gets it from its `infer_func`, which declares its
        own inputs and outputs. So the other arguments have no effect.

        Arguments:
          param_path: the folder to write to.
        """
        self.save_params(param_path)

    def _combine_handlers(  # pyright: ignore[reportIncompatibleMethodOverride]: a method of the trainer's own
        self, event_handler: Handler | Sequence[Handler] | None
    ) -> Handler:
        # The events are the trainer's own; only what handlers read of their metrics is converted.
        emit = combine_handlers(event_handler)
        return lambda event: emit(with_metrics(event, self._convert))

    def _convert(self, metrics: Any) -> Any:
        if len(self.builder.objectives) == 1 or metrics is None:
            return as_fetched(metrics)
        # Of several objectives: what each of them returns, by name.
        return {name: as_fetched(value) for name, value in metrics.items()}


def _pick(name: str, value: T | None, other_name: str, other: U | None) -> T | U | None:
    if value is not None and other is not None:
        raise TypeError(
            f"fluid.Trainer got {name} and {other_name}, expected one of them. They are two names "
            f"of one argument, of Fluid's release and of its draft. Leave out {other_name}."
        )
    return value if value is not None else other


def _check_kinds(param_path: object, checkpoint_config: object) -> None:
    order = "train_func, optimizer_func, param_path, place, parallel, checkpoint_config"
    expected = f"a folder. The order is Trainer({order}). Name the arguments to be safe."
    check_type("fluid.Trainer got param_path=", param_path, str | os.PathLike | None, expected)
    expected = "a fluid.CheckpointConfig. Pass a folder or penstock's as checkpoint=."
    thing = "fluid.Trainer got checkpoint_config="
    check_type(thing, checkpoint_config, CheckpointConfig | None, expected)

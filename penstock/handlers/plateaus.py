"""`EarlyStopping` and `ReduceOnPlateau`: what is done when a metric stops improving."""

from __future__ import annotations

import abc
import logging
import weakref
from collections.abc import Sequence
from typing import TextIO

import numpy as np

from penstock import events
from penstock._errors import check_int, check_number
from penstock._json_values import encode_json
from penstock._reader_items import check_reader
from penstock.handlers import _arguments
from penstock.handlers._display import choose_output
from penstock.handlers._monitor import Mode, Monitor, get_trainer
from penstock.handlers.evaluate import Evaluate, Test, TestResults, check_restored

_LOGGER = logging.getLogger("penstock")


class _Plateau(abc.ABC):
    """Count epochs without a better value of a metric; see `EarlyStopping` for the arguments."""

    def __init__(
        self,
        monitor: str,
        patience: int,
        min_delta: float,
        mode: Mode,
        names: Sequence[str],
        reader: events.ReaderLike | None,
        test: Test | None,
        file: TextIO | None,
    ) -> None:
        self._owner = type(self).__name__
        _arguments.check_file(self._owner, file)
        check_int("patience", patience, 1)
        if reader is not None and test is not None:
            raise ValueError(
                f"{self._owner} got reader and test, expected one of them. Either is where its "
                "values come from. Leave reader out where test reads one itself."
            )
        self._tests = TestResults(self._owner, test)
        if reader is not None:
            check_reader(reader, 1)
        self._monitor = Monitor(self._owner, monitor, mode, min_delta, names)
        self._patience, self._reader, self._test, self._file = patience, reader, test, file
        self._trainer: events.Training | None = None
        self._last_trainer: weakref.ref[events.Training] | None = None
        self._begin_anew()

    @abc.abstractmethod
    def _end_epoch(
        self, event: events.EndEpoch, trainer: events.Training, *, is_better: bool
    ) -> None:
        """Act on an epoch that was counted."""

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.BeginTraining():
                self._trainer = get_trainer(event, self._owner)
                if self._test is None:  # its metrics may be others than the program's
                    self._monitor.check(self._trainer)
                if self._reader is not None:
                    check_reader(self._reader, event.num_epochs)
                # A resumed run goes on counting, by its checkpoint; another call of `train` too.
                if self._is_another_run(event):
                    self._begin_anew()
                self._last_trainer = weakref.ref(self._trainer)
            case events.BeginEpoch():
                # A resumed epoch counts by its tests before the checkpoint too.
                self._tests.begin(event.global_step - event.first_step)
            case events.EndEpoch() if self._trainer is not None:
                self._end_epoch(event, self._trainer, is_better=self._count(event, self._trainer))
            case events.EndTraining():
                self._trainer = None

    def _is_another_run(self, event: events.BeginTraining) -> bool:
        last = self._last_trainer
        return not event.global_step or (last is not None and last() is not event.trainer)

    def _begin_anew(self) -> None:
        self._best, self._num_bad_epochs = None, 0

    def _count(self, event: events.EndEpoch, trainer: events.Training) -> bool:
        """Return whether an epoch's value is the best so far, and count the epoch; may test."""
        if self._test is not None:
            results = self._tests.ask(event)
            if not results:  # in the interval of an Evaluate
                return False
            metrics = results[-1][1]
        elif self._reader is not None:
            metrics = trainer.test(self._reader)
        else:
            metrics = event.metrics
        value = self._monitor.get_value(metrics)
        is_better = self._monitor.is_better(value, self._best)
        if is_better:
            self._best, self._num_bad_epochs = value, 0
        else:
            self._num_bad_epochs += 1
        return is_better

    @property
    def _is_over(self) -> bool:
        return self._num_bad_epochs >= self._patience

    def _print_end(self, consequence: str) -> None:
        best = "nan" if self._best is None else f"{self._best:.6g}"
        unit = "test" if isinstance(self._test, Evaluate) else "epoch"
        epochs = f"{self._patience} {unit}{'' if self._patience == 1 else 's'}"
        name = self._monitor.name
        self._print(f"{name} has not been better than {best} for {epochs}, {consequence}")

    def _print(self, text: str) -> None:
        print(f"{self._owner}: {text}", file=choose_output(self._file), flush=True)

    def get_state(self) -> events.HandlerState:
        return {"best": encode_json(self._best), "num_bad_epochs": self._num_bad_epochs}

    def set_state(self, state: events.HandlerState) -> None:
        self._best = None if state["best"] is None else float(state["best"])
        self._num_bad_epochs = int(state["num_bad_epochs"])


class EarlyStopping(_Plateau):
    """Stop training when a metric has not improved for `patience` epochs.

    The metric is that of a test after each epoch, with `reader` or `test`; else the epoch's mean
    over the training examples. NaN is never an improvement. A line is printed on stopping.

    A checkpoint holds the best value, the count of epochs, and whether training was stopped. The
    same program run again after that stops at once; another call of `train` on the same trainer
    continues for `patience` more epochs. What `restore_best` copies is not in checkpoints: after a
    resume, a warning says so. `Evaluate(best_path=...)` keeps the best parameters on disk.

    Arguments:
      monitor: the metric's name.
      patience: how many epochs in a row without improvement are allowed.
      min_delta: the smallest change that counts as an improvement.
      mode: whether a smaller (`"min"`) or a larger (`"max"`) value is better.
      names: names of metrics that have none: a program's single value, tuple or list.
      reader: test on it after each epoch, with the feed order of `train`.
      test: in place of `reader`, an `Evaluate` of the same run, or a function that returns metrics.
        Several handlers can share one `Evaluate`. Epochs without a test of its are not counted.
      restore_best: keep a copy of the best parameters in host memory, and put it back into the
        trainer at the end of training, except after an interrupt or an error. The optimizer state
        is not restored. An `Evaluate` must test no average, and with `every_steps` also after each
        epoch.
      file: an open text file; standard output by default.

    Raises:
      ValueError: `restore_best`, and `test` is an `Evaluate` of other parameters.
      UnknownNameError: at `BeginTraining`, if there is no metric `monitor`.

    >>> import optax, penstock as ps
    >>> def train_program():
    ...     prediction = ps.layers.fc(ps.layers.data("x", shape=[2]), size=1)
    ...     return ps.layers.mean(prediction * prediction)
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), place="cpu")
    >>> handler = EarlyStopping(patience=2)
    >>> handler(events.BeginTraining(epoch=0, num_epochs=9, global_step=0, trainer=trainer))
    >>> for epoch, loss in enumerate([0.5, 0.25, 0.5, 0.375]):
    ...     handler(events.EndEpoch(epoch, global_step=8 * epoch + 8, read=lambda: loss))
    EarlyStopping: loss has not been better than 0.25 for 2 epochs, training stops
    """

    def __init__(
        self,
        monitor: str = "loss",
        *,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Mode = "min",
        names: Sequence[str] = ("loss",),
        reader: events.ReaderLike | None = None,
        test: Test | None = None,
        restore_best: bool = False,
        file: TextIO | None = None,
    ) -> None:
        super().__init__(monitor, patience, min_delta, mode, names, reader, test, file)
        if restore_best:
            check_restored(test)
        self._restores_best = restore_best
        self._has_stopped = False
        self._last_epoch = -1

    def __call__(self, event: events.Event) -> None:
        """Count the epochs without improvement, and stop after `patience` of them."""
        is_over = isinstance(event, events.EndTraining) and event.reason in ("completed", "stopped")
        # After an error or an interrupt the parameters stay what the run has come to.
        if is_over and self._trainer is not None and not self._has_stopped:
            self._restore_parameters(self._trainer)
        super().__call__(event)
        if isinstance(event, events.BeginTraining):
            self._last_epoch = event.epoch + event.num_epochs - 1
            # Trained on by a further call: it has the whole patience again.
            if self._has_stopped:
                self._num_bad_epochs = 0
                self._has_stopped = False

    def _end_epoch(
        self, event: events.EndEpoch, trainer: events.Training, *, is_better: bool
    ) -> None:
        if is_better:
            if self._restores_best:
                self._best_parameters = dict(trainer.parameters)
        elif self._is_over and not self._has_stopped:
            self._print_end("training stops")
            self._has_stopped = True
            trainer.stop()
        # Not only when training has ended: the last checkpoint is written before.
        if self._has_stopped or event.epoch == self._last_epoch:
            self._restore_parameters(trainer)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._best_parameters: dict[str, np.ndarray] = {}

    def _restore_parameters(self, trainer: events.Training) -> None:
        if self._best_parameters:
            trainer.parameters.update(self._best_parameters)

    def get_state(self) -> events.HandlerState:
        """Return best value, count, and whether training was stopped, for a checkpoint."""
        return {**super().get_state(), "has_stopped": self._has_stopped}

    def set_state(self, state: events.HandlerState) -> None:
        """Restore the state of a checkpoint; stop if training was stopped there."""
        super().set_state(state)
        self._has_stopped = bool(state["has_stopped"])
        if self._has_stopped and self._trainer is not None:
            self._print("training was stopped here before, and stops again")
            self._trainer.stop()
        elif self._restores_best and self._best is not None:
            _LOGGER.warning(
                "EarlyStopping got a resumed run and restore_best=True, expected a run from its "
                "beginning. The parameters of the best value so far, %g, are not in a checkpoint, "
                "and come back only if a better one follows. Evaluate(best_path=...) keeps them.",
                self._best,
            )


class ReduceOnPlateau(_Plateau):
    """Lower the learning rate when a metric has not improved for `patience` epochs.

    It multiplies `trainer.update_scale`, the factor of every optimizer update, by `factor`, as
    Keras's `ReduceLROnPlateau` does the learning rate. That needs no compilation and combines with
    a schedule. The metric and `patience` are as for `EarlyStopping`. Each reduction prints a line.

    Arguments:
      factor: the factor of each reduction, between 0 and 1.
      min_scale: the lower bound of the scale, which begins at 1.
      cooldown: how many epochs after a reduction are not counted.
      monitor, patience, min_delta, mode, names, reader, test, file: as for `EarlyStopping`.

    Raises:
      UnknownNameError: at `BeginTraining`, if there is no metric `monitor`.
      ProgramError: at `BeginTraining`, if the updates of an optimizer cannot be scaled.

    >>> import optax, penstock as ps
    >>> def train_program():
    ...     prediction = ps.layers.fc(ps.layers.data("x", shape=[2]), size=1)
    ...     return ps.layers.mean(prediction * prediction)
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), place="cpu")
    >>> trainer.update_scale = 1.0
    >>> handler = ReduceOnPlateau(factor=0.5, patience=1)
    >>> handler(events.BeginTraining(epoch=0, num_epochs=9, global_step=0, trainer=trainer))
    >>> for epoch, loss in enumerate([0.5, 0.5]):
    ...     handler(events.EndEpoch(epoch, global_step=8 * epoch + 8, read=lambda: loss))
    ReduceOnPlateau: loss has not been better than 0.5 for 1 epoch, updates are scaled by 0.5
    """

    def __init__(
        self,
        monitor: str = "loss",
        *,
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 0.0,
        min_scale: float = 0.0,
        cooldown: int = 0,
        mode: Mode = "min",
        names: Sequence[str] = ("loss",),
        reader: events.ReaderLike | None = None,
        test: Test | None = None,
        file: TextIO | None = None,
    ) -> None:
        owner = "ReduceOnPlateau"
        why = "The scale of the updates is multiplied by it at each reduction."
        check_number(f"{owner} got factor=", factor, "(0, 1)", why)
        why = "The scale of the updates, 1 at first, is not lowered below it."
        check_number(f"{owner} got min_scale=", min_scale, "[0, inf]", why)
        check_int("cooldown", cooldown, 0)
        super().__init__(monitor, patience, min_delta, mode, names, reader, test, file)
        self._factor, self._min_scale, self._cooldown = factor, min_scale, cooldown

    def __call__(self, event: events.Event) -> None:
        """Count the epochs without improvement, and lower the scale after `patience`."""
        super().__call__(event)
        if isinstance(event, events.BeginTraining):
            network = get_trainer(event, self._owner).builder.programs.network
            # Now, and not at the first plateau, which may be hours later.
            network.check_update_scale(self._factor)

    def _end_epoch(
        self, event: events.EndEpoch, trainer: events.Training, *, is_better: bool
    ) -> None:
        # A lower rate takes some epochs to show: they count for nothing.
        if self._cooldown_left:
            self._cooldown_left -= 1
            self._num_bad_epochs = 0
        if self._is_over:
            self._num_bad_epochs = 0
            self._reduce(trainer)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._cooldown_left = 0

    def _reduce(self, trainer: events.Training) -> None:
        before = trainer.update_scale
        scale = max(before * self._factor, self._min_scale)
        if scale >= before * (1 - 1e-6):  # a trainer keeps it in float32
            return
        trainer.update_scale = scale
        self._cooldown_left = self._cooldown
        self._print_end(f"updates are scaled by {scale:.6g}")

    def get_state(self) -> events.HandlerState:
        """Return best value and counts for a checkpoint; the trainer keeps the scale."""
        return {**super().get_state(), "cooldown_left": self._cooldown_left}

    def set_state(self, state: events.HandlerState) -> None:
        """Restore the best value and counts of a checkpoint."""
        super().set_state(state)
        self._cooldown_left = int(state["cooldown_left"])

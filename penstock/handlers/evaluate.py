"""`Evaluate`: tests during training, their results and the best parameters."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import jax

from penstock import events
from penstock._errors import check_int
from penstock._files import expand_path, find_free, replacing
from penstock._json_values import encode_json
from penstock._reader_items import check_reader
from penstock._text_tables import find_columns, wrap_clauses
from penstock.handlers import _arguments
from penstock.handlers._display import choose_output
from penstock.handlers._monitor import Mode, Monitor, get_trainer

_RECORD = "test.json"


class Evaluate:
    """Test every few steps or epochs, print each result, and save the best parameters.

    Training waits for the test. Other handlers can share its results, before or after it in the
    list: `Progress(test=evaluate)`, `EarlyStopping(test=evaluate)`, `CSVLog(path, test=evaluate)`.
    Called without an event, an `Evaluate` returns the metrics of the current parameters; the same
    parameters are tested only once. No handler counts its time as that of steps.

    Arguments:
      reader: yields the test batches, as for `Trainer.test`.
      every_steps: test when `(global_step + 1) % every_steps == 0`; `None` for no such tests. If a
        launch has several steps, the parameters are those after all of them.
      every_epochs: the interval in epochs; `None` for no tests after epochs.
      monitor: the metric that decides which test is the best. Of two tests with the same value, the
        one with the lower `loss` is better.
      mode: whether a smaller (`"min"`) or a larger (`"max"`) value is better.
      best_path: a folder for the best parameters, as `Trainer.save_params` writes it, with their
        test in `test.json`. A resumed run replaces them only with better ones. Parameters of
        another run are first moved to the next free of `best_path.1`, `best_path.2`, ...
      names: names of metrics that have none: a program's single value, tuple or list.
      feed_order: as for `Trainer.test`.
      averaged: test and save the optimizer's moving average of the parameters.
      file: an open text file; standard output by default.

    Attributes:
      results: the steps done and the metrics by name of each test; a resumed run has the earlier
        ones too.

    Raises:
      TypeError: `reader` is no reader.
      ReaderError: at `BeginTraining`, if `reader` can be read once, and is to be read again.
      UnknownNameError: at `BeginTraining`, if there is no metric `monitor`.
      ValueError: at `BeginTraining`, if no optimizer keeps the average that is to be tested.
      OSError: at `BeginTraining`, if the folder `best_path` cannot be created.

    >>> import numpy as np, optax, penstock as ps
    >>> def train_program():
    ...     prediction = ps.layers.fc(ps.layers.data("x", shape=[2]), size=1)
    ...     return ps.layers.mean(prediction * prediction)
    >>> reader = ps.readers.arrays({"x": np.ones([8, 2], "float32")}, batch_size=4)
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), place="cpu")
    >>> evaluate = Evaluate(reader)
    >>> trainer.train(reader, evaluate, num_epochs=2)
    test at step 2: loss = ... (best)
    test at step 4: loss = ... (best)
    >>> evaluate.last == {"loss": trainer.test(reader)}
    True
    """

    def __init__(
        self,
        reader: events.ReaderLike,
        *,
        every_steps: int | None = None,
        every_epochs: int | None = 1,
        monitor: str = "loss",
        mode: Mode = "min",
        best_path: str | os.PathLike[str] | None = None,
        names: Sequence[str] = ("loss",),
        feed_order: events.FeedOrder | None = None,
        averaged: bool = False,
        file: TextIO | None = None,
    ) -> None:
        check_reader(reader, 1)
        for argument, value in (("every_steps", every_steps), ("every_epochs", every_epochs)):
            if value is not None:
                check_int(argument, value, 1)
        _arguments.check_file("Evaluate", file)
        self.results: list[tuple[int, dict[str, float]]] = []
        self._reader, self._feed_order, self._averaged = reader, feed_order, averaged
        self._every_steps, self._every_epochs = every_steps, every_epochs
        self._names = _arguments.as_names(names)
        self._monitor = Monitor("Evaluate", monitor, mode, 0.0, self._names)
        self._best_path = None if best_path is None else expand_path(best_path)
        self._file = file
        self._trainer: events.Training | None = None
        self._is_current = self._is_due = False
        self._recorded: tuple[int, dict[str, float]] | None = None
        self._holds_another_run = False

    def __call__(self, event: events.Event | None = None) -> dict[str, float] | None:
        """Test at the interval; without an event, return the current metrics.

        Raises:
          RuntimeError: called without an event before training.
        """
        match event:
            case None:
                return self._get_current()
            case events.EndStep():
                if self._every_steps and (event.global_step + 1) % self._every_steps == 0:
                    self._is_due = True
                    self._get_current()
            case events.EndEpoch():
                is_due = self._every_epochs and (event.epoch + 1) % self._every_epochs == 0
                if is_due or self._is_due:
                    self._get_current()
            case events.BeginStep():
                if self._is_due:  # an interrupt broke it off, and nothing was trained since
                    self._get_current()
                # What was tested is out of date with the next step.
                self._is_current = False
            case events.EndTraining():
                # Who asks later may have loaded other parameters.
                self._is_current = False
            case events.BeginTraining():
                self._begin(event)
        return None

    @property
    def last(self) -> dict[str, float] | None:
        """The metrics of the last test, by name; `None` before the first."""
        return self.results[-1][1] if self.results else None

    @property
    def best(self) -> tuple[int, dict[str, float]] | None:
        """The steps done and the metrics of the best test; `None` before the first."""
        best = self._recorded
        for result in self.results:
            if self._is_better(result[1], best and best[1]):
                best = result
        return best

    def get_state(self) -> events.HandlerState:
        """Return the results for a checkpoint, and whether a test was broken off."""
        return {"results": encode_json(self.results), "is_due": self._is_due}

    def set_state(self, state: events.HandlerState) -> None:
        """Restore the results of a checkpoint."""
        self.results = [
            (int(step), {name: float(value) for name, value in metrics.items()})
            for step, metrics in state["results"]
        ]
        self._is_due = bool(state.get("is_due"))  # earlier checkpoints do not have it

    def _begin(self, event: events.BeginTraining) -> None:
        if self._trainer is not None and self._trainer is not event.trainer:
            self.results = []
        self._trainer = get_trainer(event, "Evaluate")
        self._monitor.check(self._trainer)
        if self._every_epochs:
            check_reader(self._reader, event.num_epochs // self._every_epochs)
        if self._averaged:
            # Now, and not in the first test, which may be hours later.
            self._trainer.builder.programs.states.check_average()
        self._is_current = False
        self._is_due = self._is_due and event.global_step > 0
        # What another run left, or a part of this one that is trained again.
        self.results = [r for r in self.results if event.global_step and r[0] <= event.global_step]
        if self._best_path is not None:
            _arguments.make_folder("Evaluate", self._best_path)
            is_new = not event.global_step
            # A test later than the last checkpoint may be there.
            self._recorded = None if is_new else _read_record(self._best_path, self._monitor.name)
            self._holds_another_run = is_new and any(self._best_path.iterdir())

    def _get_current(self) -> dict[str, float] | None:
        if self._trainer is None:
            raise RuntimeError(
                "Evaluate got called without an event before training, expected a BeginTraining "
                "first. It brings the trainer to test with. Pass Trainer.train one list with the "
                "Evaluate and the handlers that use it."
            )
        # An interval of steps and an epoch's end may fall together: tested once.
        if not self._is_current:
            self._run_test(self._trainer)
            self._is_current, self._is_due = True, False
        return self.last

    def _run_test(self, trainer: events.Training) -> None:
        values = trainer.test(self._reader, self._feed_order, averaged=self._averaged)
        metrics = _arguments.name_scalars(values, self._names)
        best = self.best
        step = trainer.global_step
        # A test of the same step, made again after a resume, takes the old one's place.
        self.results = [*(result for result in self.results if result[0] < step), (step, metrics)]
        is_best = self._is_better(metrics, best and best[1])
        kept = ""
        if is_best and self._best_path is not None:
            kept = self._save_best(self._best_path, trainer, step, metrics)
        file = choose_output(self._file)
        shown = ", ".join(f"{name} = {value:.6g}" for name, value in metrics.items())
        line = f"test at step {step}: {shown}{f' (best{kept})' if is_best else ''}"
        print(wrap_clauses(line, find_columns(file), "  "), file=file, flush=True)

    def _is_better(self, metrics: dict[str, float], best: dict[str, float] | None) -> bool:
        # A network of nan guesses some classes right, and is the best of nothing.
        if math.isnan(metrics.get("loss", 0.0)):
            return False
        value = self._monitor.get_value(metrics)
        best_value = None if best is None else self._monitor.get_value(best)
        # A small test has few accuracies, and many tests share the best of them.
        if best is not None and value == best_value and "loss" in metrics:
            return metrics["loss"] < best.get("loss", math.inf)
        return self._monitor.is_better(value, best_value)

    def _save_best(
        self, folder: Path, trainer: events.Training, step: int, metrics: dict[str, float]
    ) -> str:
        """Save the parameters and their test; return a remark on those of another run, if any."""
        remark = ""
        if self._holds_another_run and not jax.process_index():
            other = folder.rename(find_free(folder))
            remark = f"; those of another run are in {other}"
        self._holds_another_run = False
        trainer.save_params(folder, averaged=self._averaged)
        if not jax.process_index():
            # Beside the parameters: a part that is trained again after a kill compares with it.
            record = {"step": step, "metrics": encode_json(metrics), "monitor": self._monitor.name}
            with replacing(folder / _RECORD) as temporary:
                temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")
        self._recorded = None
        return remark


def _read_record(folder: Path, monitor: str) -> tuple[int, dict[str, float]] | None:
    """Return step and metrics of the test of the parameters in a folder, where it tells them."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        metrics = {name: float(value) for name, value in record["metrics"].items()}
        return (int(record["step"]), metrics) if monitor in metrics else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


Test = Callable[[], events.Metrics] | Evaluate
"""A function that returns metrics, called at the end of each epoch; or an `Evaluate` of the run,
whose results are taken when it has tested."""


def check_restored(test: Test | None) -> None:
    """Raise if an `Evaluate` tests other parameters than those at the ends of epochs."""
    if not isinstance(test, Evaluate):
        return
    got, expected, why = "", "", ""
    if test._every_steps and test._every_epochs != 1:
        got = f"every_steps={test._every_steps}, every_epochs={test._every_epochs}"
        expected, why = "every_epochs=1 beside", "Between a test and that end there are more steps"
    if test._averaged:
        got, expected, why = "averaged=True", "one without", "It is not of their average"
    if got:
        raise ValueError(
            f"EarlyStopping got restore_best=True and Evaluate({got}), expected {expected}. The "
            f"copy is of the parameters at the end of an epoch. {why}. Or leave restore_best out: "
            "Evaluate(best_path=...) keeps what it tested."
        )


class TestResults:
    """Return the results of tests, each with the number of steps done before it."""

    def __init__(self, owner: str, test: Test | None) -> None:
        _arguments.check_test(owner, test)
        self._test = test
        self._last_step = self._restored_step = 0

    def begin(self, last_step: int, restored_step: int = 0) -> None:
        """Return only results of more steps than `last_step` from now on.

        Those up to `restored_step` that are there before the first epoch begins are not new.
        """
        self._last_step, self._restored_step = last_step, restored_step

    def ask(self, event: events.EndEpoch) -> list[tuple[int, events.Metrics]]:
        """Return the new results, that of an Evaluate behind in the list too if it is due now."""
        if isinstance(self._test, Evaluate):
            self._test(event)
        return self(event)

    def __call__(self, event: events.Event | None = None) -> list[tuple[int, events.Metrics]]:
        """Return the results that are new at this event, or now."""
        if isinstance(self._test, Evaluate):
            results: list[tuple[int, events.Metrics]] = [*self._test.results]
        elif self._test is not None and isinstance(event, events.EndEpoch):
            results = [(event.global_step, self._test())]
        else:
            results = []
        if isinstance(event, events.BeginTraining):
            # An Evaluate behind in the list still has those of another run.
            results = [result for result in results if result[0] <= self._restored_step]
        # A resumed run may test again at the step it was interrupted at.
        new = [result for result in results if result[0] > self._last_step]
        self._last_step = new[-1][0] if new else self._last_step
        if isinstance(event, events.BeginTraining | events.BeginEpoch):
            new = [result for result in new if result[0] > self._restored_step]
        return new

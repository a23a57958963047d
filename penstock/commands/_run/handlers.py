"""FastNN's hooks as handlers of events, and what every run has beside them."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from penstock import handlers
from penstock.commands._flags import LoggingFlags, TrainFlags
from penstock.commands._run.benchmark import Benchmark, TimedReader
from penstock.commands._run.folder import RunFolder
from penstock.commands._run.plan import Plan
from penstock.commands._run.record import Record
from penstock.commands._run.samples import BatchReader
from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining, Event

if TYPE_CHECKING:
    from penstock.commands._run.data import Data


@dataclasses.dataclass(frozen=True)
class RunHandlers:
    """The handlers of a run.

    Arguments:
      all: in the order they are called.
      evaluate: the one that tests; None where there is no test data, or no test is wanted.
    """

    all: tuple[Any, ...]
    evaluate: handlers.Evaluate | None


def make_handlers(flags: TrainFlags, data: Data, plan: Plan, folder: RunFolder) -> RunHandlers:
    """Return the handlers that the flags ask for.

    Raises:
      ModuleNotFoundError: one needs a package that is not installed; names the extra.
    """
    logging = flags.logging
    every = logging.log_loss_every_n_iters
    is_shown = logging.has_hook("LoggingTensorHook") and not jax.process_index()
    shows_lines = is_shown and every > 0
    evaluate = None
    if data.test is not None and logging.eval_every_n_epochs:
        evaluate = _make_evaluate(flags, data.test, folder, is_quiet=not shows_lines)
    # Before the tests, which are not to count as steps.
    found: list[Any] = [Record(folder.record, describe_sizes(data, plan))]
    # Tests come next: handlers behind them show and log their results.
    found += [] if evaluate is None else [evaluate, FinalTest(evaluate)]
    if shows_lines:
        found.append(handlers.Log(every))
    elif is_shown:
        found.append(handlers.Progress(test=evaluate, stop_at=plan.stop_at))
    found.append(handlers.CSVLog(folder.log, every_steps=max(every, 1), test=evaluate))
    if logging.summaryDir is not None:
        found.append(handlers.TensorBoard(logging.summaryDir, every_steps=max(every, 1)))
    if logging.print_model_statistics or logging.log_trainable_vars_statistics:
        found.append(handlers.Summary())
    if logging.log_device_placement:
        found.append(DevicePlacement())
    if is_tracing(logging):
        found.append(ProfileEvery(folder.profile, logging.profile_every_n_iters))
    if isinstance(data.train, TimedReader):
        found.append(Benchmark(data.train, max(every, 1)))
    if plan.stop_at is not None:
        found.append(handlers.StopAt(step=plan.stop_at))
    return RunHandlers(tuple(found), evaluate)


def describe_sizes(data: Data, plan: Plan) -> dict[str, object]:
    """Return how many images, steps and classes there are, by name."""
    return {
        "num_train": data.num_train,
        "num_test": data.num_test,
        "num_classes": data.shape.num_classes,
        "image_shape": list(data.shape.image_shape),
        "batch_size": data.batch_size,
        "steps_per_epoch": data.steps_per_epoch,
        "num_steps": plan.num_steps,
    }


def is_tracing(logging: LoggingFlags) -> bool:
    """Return whether this process writes traces."""
    is_wanted = logging.profile_every_n_iters > 0 and logging.has_hook("ProfilerHook")
    return is_wanted and jax.process_index() == logging.profile_at_task


def _make_evaluate(
    flags: TrainFlags, test: BatchReader, folder: RunFolder, *, is_quiet: bool
) -> handlers.Evaluate:
    return handlers.Evaluate(
        test,
        every_epochs=flags.logging.eval_every_n_epochs,
        monitor="accuracy",
        mode="max",
        best_path=folder.best,
        averaged=flags.optimizer.moving_average_decay is not None,
        # The progress line has the results of tests beside those of training.
        file=io.StringIO() if is_quiet else None,
    )


class FinalTest:
    """Test the last parameters of a run before other handlers log its end.

    Arguments:
      evaluate: the handler that tests; it does not test the same state twice.
    """

    def __init__(self, evaluate: handlers.Evaluate) -> None:
        self._evaluate = evaluate

    def __call__(self, event: Event) -> None:
        """Test at the end of training."""
        if isinstance(event, EndTraining) and event.error is None:
            self._evaluate()


class ProfileEvery:
    """Trace one step of every so many, each into a folder of its own, `step-<number>`.

    Arguments:
      directory: where the folders go.
      every_steps: the interval.
    """

    def __init__(self, directory: Path, every_steps: int) -> None:
        self._directory, self._every_steps = directory, every_steps
        self._profile: handlers.Profile | None = None

    def __call__(self, event: Event) -> None:
        """Begin a trace before the step, and end it behind it."""
        if isinstance(event, BeginStep) and (event.global_step + 1) % self._every_steps == 0:
            folder = self._directory / f"step-{event.global_step + 1}"
            self._profile = handlers.Profile(folder, first_step=0, num_steps=1)
        if self._profile is not None:
            self._profile(event)
            if isinstance(event, EndStep | EndTraining):
                self._profile = None


class DevicePlacement:
    """Print the devices when training begins, and what lies on them."""

    def __call__(self, event: Event) -> None:
        """Print at the beginning of training."""
        if not isinstance(event, BeginTraining) or event.trainer is None:
            return
        devices = list(event.trainer.builder.mesh.devices.flat)
        print("device placement: parameters and optimizer state on each, a part of every batch")
        for number, device in enumerate(devices):
            print(
                f"  {device.platform}:{device.id} {device.device_kind}, process "
                f"{device.process_index}: rows {number}/{len(devices)} of each batch"
            )

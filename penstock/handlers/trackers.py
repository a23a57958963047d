"""`WandB` and `MLflow`: the curves and hyperparameters of a run in a tracking service."""

from __future__ import annotations

import abc
import importlib
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import jax

from penstock._errors import check_installed
from penstock._files import expand_path
from penstock.events import BeginTraining, EndTraining, Event, HandlerState, Reason, Training
from penstock.handlers import _arguments
from penstock.handlers._readings import Curves, Point
from penstock.handlers.evaluate import Test

_LOGGER = logging.getLogger("penstock")


class Tracker(abc.ABC):
    """Write the curves and hyperparameters of training to a run of a tracking service.

    It is opened at the first event after `BeginTraining`, when a checkpoint's state, with its id,
    is there. What fails later is warned of once; at the end it is an error.
    """

    def __init__(
        self,
        every_steps: int,
        names: Sequence[str],
        test: Test | None,
        hyperparameters: Mapping[str, Any] | None,
    ) -> None:
        self._owner = type(self).__name__
        self._hyperparameters = _arguments.check_hyperparameters(self._owner, hyperparameters)
        self._curves = Curves(self._owner, every_steps, names, test)
        self._run_id: str | None = None
        self._trainer: Training | None = None
        self._is_begun = self._is_open = False
        self._failure: Exception | None = None

    @abc.abstractmethod
    def _open(self, hyperparameters: _arguments.Hyperparameters) -> str:
        """Open a run, that of `_run_id` where there is one; return its id."""

    @abc.abstractmethod
    def _log(self, num_steps: int, values: Mapping[str, float]) -> None:
        """Add points to curves; what the run has of the step already stays. May raise anything."""

    @abc.abstractmethod
    def _close(self, reason: Reason) -> None:
        """Write what is left and end a run of our own; raise where points are missing."""

    def __call__(self, event: Event) -> None:
        """Log the points that are ready."""
        if isinstance(event, BeginTraining):
            if not event.global_step:
                self._run_id = None  # a new training is a new run
            self._trainer = event.trainer
            self._is_begun, self._is_open, self._failure = True, False, None
            self._curves(event)
        elif isinstance(event, EndTraining):
            self._write(self._curves(event))
            self._end(event)
        elif self._is_begun:
            self._open_once()
            self._write(self._curves(event))

    def _open_once(self) -> None:
        if not self._is_open and not jax.process_index():  # one process logs
            hyperparameters = _arguments.list_hyperparameters(self._hyperparameters, self._trainer)
            self._run_id = self._open(hyperparameters)
            self._is_open = True

    def _write(self, points: Sequence[Point]) -> None:
        if any(point.kind == "test" for point in points):
            # Services take steps in their order, and a step before the test may still be held.
            points = [*self._curves.take(), *points]
        for point in sorted(points, key=lambda point: point.num_steps):
            values = {f"{point.kind}/{name}": value for name, value in point.values.items()}
            try:
                if self._is_open and values:
                    self._log(point.num_steps, values)
            except Exception as error:
                if self._failure is None:  # said once
                    self._failure = error
                    _LOGGER.warning("%s Training goes on.", self._explain(error))

    def _end(self, event: EndTraining) -> None:
        is_open, self._is_open = self._is_open, False
        self._is_begun, self._trainer = False, None
        try:
            if is_open:
                self._close(event.reason)
        except Exception as error:
            # The error that ended training is the one to see.
            if event.error is None:
                raise OSError(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        return (
            f"{self._owner} got {type(error).__name__} for the run {self._run_id!r} ({error}), "
            "expected that it can be written. Its curves have gaps. See to the server, or to the "
            "folder."
        )

    def get_state(self) -> HandlerState:
        """Return the run's id for a checkpoint, after logging the points that are due."""
        if self._is_begun:
            self._open_once()
            self._write(self._curves.take())
        return {"run_id": self._run_id}

    def set_state(self, state: HandlerState) -> None:
        """Continue the run whose id is in a checkpoint."""
        self._run_id = state["run_id"]


# What the services show as killed and as failed; all else is finished.
_EXIT_CODES = {"interrupted": 255, "failed": 1}
_STATUSES = {"interrupted": "KILLED", "failed": "FAILED"}


class WandB(Tracker):
    """Log to Weights & Biases: curves and hyperparameters.

    - At the interval, `train/loss` and the other metrics, with `train/learning_rate`; `epoch/loss`,
      the mean over an epoch; `test/loss`, the result of a test.
    - `speed/examples_per_sec`, without compilation and the time between epochs, and
      `speed/data_wait`, the fraction of an epoch spent waiting for the reader.
    - As its config: `hyperparameters` and the result of `trainer.describe()`.

    A run that is resumed from a checkpoint continues the same W&B run, whose id is in the
    checkpoint. W&B accepts steps only in increasing order, so points of repeated steps keep their
    first value. W&B sends them from its own process.

    If a run was opened with `wandb.init`, it is used and left open; pass entity, group, tags and
    notes there. With `WANDB_MODE=offline`, or `mode="offline"`, W&B writes a folder, which `wandb
    sync` uploads later; a resumed run writes a second folder, to be uploaded after the first.

    Arguments:
      project: the project's name; by default `WANDB_PROJECT`, else chosen by W&B.
      name: the run's name; by default generated by W&B.
      directory: where W&B creates its folder `wandb`; by default the current directory.
      mode: `"online"`, `"offline"` or `"disabled"`; by default `WANDB_MODE`.
      every_steps: the interval in steps between two points; 0 or less logs no steps.
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function of metrics, called after each epoch.
      hyperparameters: values by name, nested or not, such as `vars(arguments)` of argparse.

    Raises:
      ModuleNotFoundError: wandb is not installed; the extra `wandb` installs it.
      OSError: at the end of training, if points could not be written; a warning is logged when it
        happens. Errors that W&B raises when it opens a run reach the caller.

    >>> log = WandB("digits", hyperparameters={"learning_rate": 0.1})  # doctest: +SKIP
    >>> trainer.train(reader, log, num_epochs=5)  # doctest: +SKIP
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        every_steps: int = 50,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        check_installed("wandb", "wandb", "WandB")
        super().__init__(every_steps, names, test, hyperparameters)
        self._options = {"project": project, "name": name, "mode": mode}
        self._directory = None if directory is None else expand_path(directory)
        self._run: Any = None
        self._is_ours = False
        self._first_step = 0

    def _open(self, hyperparameters: _arguments.Hyperparameters) -> str:
        wandb: Any = importlib.import_module("wandb")
        self._run, self._is_ours = wandb.run, wandb.run is None
        if self._is_ours:
            if self._directory is not None:
                # W&B falls back on a temporary folder where there is none.
                self._directory.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                **self._options,
                dir=self._directory,
                id=self._run_id,
                # A store that has lost the run makes it again, with the same id.
                resume=None if self._run_id is None else "allow",
            )
        # A resumed run may come with other versions or options.
        self._run.config.update(hyperparameters, allow_val_change=True)
        # W&B would warn of each point before.
        self._first_step = self._run.step
        return self._run.id

    def _log(self, num_steps: int, values: Mapping[str, float]) -> None:
        if num_steps >= self._first_step:
            self._run.log(dict(values), step=num_steps)

    def _close(self, reason: Reason) -> None:
        run, self._run = self._run, None
        if self._is_ours:
            run.finish(exit_code=_EXIT_CODES.get(reason, 0))
        if self._failure is not None:
            raise self._failure


# What servers take in one request.
_MAX_METRICS, _MAX_PARAMS = 1000, 100


class MLflow(Tracker):
    """Log to MLflow: the curves of `WandB`, and hyperparameters as the run's parameters.

    A run that is resumed from a checkpoint continues the same MLflow run, whose id is in the
    checkpoint. Its parameters, and the points of repeated steps, keep their first values. A thread
    sends points, and tries again those that could not be sent. If a run was opened with
    `mlflow.start_run`, it is used and left open. Characters that MLflow does not accept in a name
    become `_`: `top@5` is logged as `top_5`.

    Arguments:
      experiment: the experiment's name; created if it does not exist. By default
        `MLFLOW_EXPERIMENT_NAME`, else MLflow's `Default`.
      name: the run's name; by default generated by MLflow.
      tracking_uri: where runs are stored, such as `"sqlite:///runs/mlflow.db"` or
        `"http://host:5000"`; by default `MLFLOW_TRACKING_URI`, else chosen by MLflow.
      every_steps, names, test, hyperparameters: as for `WandB`.

    Raises:
      ModuleNotFoundError: MLflow is not installed; the extra `mlflow` installs it.
      OSError: as for `WandB`.

    >>> log = MLflow("digits", tracking_uri="sqlite:///mlflow.db")  # doctest: +SKIP
    >>> trainer.train(reader, log, num_epochs=5)  # doctest: +SKIP
    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        name: str | None = None,
        tracking_uri: str | None = None,
        every_steps: int = 50,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        check_installed("mlflow", "mlflow", "MLflow")
        super().__init__(every_steps, names, test, hyperparameters)
        self._experiment, self._name, self._tracking_uri = experiment, name, tracking_uri
        self._client: Any = None
        self._metric: Any = None
        self._is_ours = False
        self._last_steps: dict[str, int] = {}
        self._unsent: list[Any] = []
        self._thread: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None

    def _open(self, hyperparameters: _arguments.Hyperparameters) -> str:
        mlflow: Any = importlib.import_module("mlflow")
        self._client = client = mlflow.MlflowClient(tracking_uri=self._tracking_uri)
        active, run_id = mlflow.active_run(), self._run_id
        self._is_ours = active is None
        if active is not None:
            run_id = str(active.info.run_id)
        # MLflow refuses a parameter that was another when the run began.
        is_new = run_id is None or (active is not None and not active.data.params)
        if run_id is None:
            name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            experiment = client.get_experiment_by_name(name)
            experiment_id = (
                experiment.experiment_id if experiment else client.create_experiment(name)
            )
            run_id = str(client.create_run(experiment_id, run_name=self._name).info.run_id)
        elif active is None:
            client.update_run(run_id, status="RUNNING")
        if is_new:
            param = mlflow.entities.Param
            params = [param(_clean(key), str(value)) for key, value in hyperparameters.items()]
            for first in range(0, len(params), _MAX_PARAMS):
                client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
        # MLflow would keep both points of a step that is made again.
        self._last_steps = {
            key: max(metric.step for metric in client.get_metric_history(run_id, key))
            for key in client.get_run(run_id).data.metrics
        }
        self._metric, self._unsent, self._sending = mlflow.entities.Metric, [], None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-mlflow")
        return run_id

    def _log(self, num_steps: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._unsent += [
            self._metric(_clean(name), value, now, num_steps)
            for name, value in values.items()
            if num_steps > self._last_steps.get(_clean(name), -1)
        ]
        last = self._sending
        if self._thread is not None and (last is None or last.done()):
            self._sending = self._thread.submit(self._send)
            if last is not None:
                last.result()  # what has failed is said, and tried again with this point

    def _send(self) -> None:
        while self._unsent:
            batch = self._unsent[:_MAX_METRICS]
            self._client.log_batch(self._run_id, metrics=batch)
            # Not before it is taken, so that a server that is away loses none.
            del self._unsent[: len(batch)]

    def _close(self, reason: Reason) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        try:
            thread.submit(self._send).result()
            if self._is_ours:
                self._client.set_terminated(self._run_id, _STATUSES.get(reason, "FINISHED"))
        finally:
            thread.shutdown()


def _clean(name: str) -> str:
    return re.sub(r"[^\w./ -]", "_", name)

"""`MLflow`: the curves and hyperparameters of a run in MLflow."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock._errors import check_installed
from penstock.events import Reason
from penstock.handlers._hyperparameters import Hyperparameters
from penstock.handlers._test_results import Test
from penstock.handlers._tracker import TrackedRun, Tracker

# What servers take in one request.
_MAX_METRICS, _MAX_PARAMS = 1000, 100

_STATUSES: dict[Reason, str] = {
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}


class MLflow(Tracker):
    """Log to MLflow: curves by the number of steps done, and what the run began with.

    - `train/loss` and the other metrics, with `train/learning_rate`, at the interval; `epoch/loss`,
      means over an epoch; `test/loss`, results of tests.
    - `speed/examples_per_sec`, without compiling and what is between epochs, and
      `speed/data_wait`, the share of its time that an epoch waited for the reader.
    - As its parameters: `hyperparameters`, and what `trainer.describe()` says.

    A run that resumes from a checkpoint goes on in the same run of MLflow, as its id is in the
    checkpoint. Points of steps that are made again, and its parameters, stay as they were. Metrics
    are read one launch late, and a thread sends them, so neither the device nor the host waits.
    What a server that is away did not take is tried again. With several processes the first logs.

    A run that `mlflow.start_run` has opened before is used, and left open. Names that MLflow does
    not take have `_` in place of what it refuses: `top@5` becomes `top_5`.

    Arguments:
      experiment: what the run belongs to, made where it is missing; by default
        `MLFLOW_EXPERIMENT_NAME`, or MLflow's own, `Default`.
      name: the run's name; MLflow makes one up otherwise.
      tracking_uri: where runs are kept, such as `"sqlite:///runs/mlflow.db"` or
        `"http://host:5000"`; by default `MLFLOW_TRACKING_URI`, or MLflow's own choice.
      every_steps: how many steps lie between two points.
      names: names for the values of a program function that returns a single value, a tuple or a
        list; further values are called `metric_1`, `metric_2` by position. A dict has its own.
      test: called at the end of each epoch, returns metrics; or an `Evaluate` of the same run.
      hyperparameters: values by name, of any depth, such as `vars(arguments)` of argparse.

    Raises:
      ModuleNotFoundError: MLflow is not installed; the extra `mlflow` brings it.
      OSError: at the end of training, when points could not be written. It is warned of when it
        happens. What MLflow raises when it opens a run goes to the caller.

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
        self._mlflow: Any = None

    def _load(self) -> None:
        self._mlflow = importlib.import_module("mlflow")

    def _open(self, run_id: str | None, hyperparameters: Hyperparameters) -> TrackedRun:
        client = self._mlflow.MlflowClient(tracking_uri=self._tracking_uri)
        active = self._mlflow.active_run()
        if active is not None:
            run_id = str(active.info.run_id)
        # MLflow refuses a parameter that was another when the run began.
        is_new = run_id is None or (active is not None and not active.data.params)
        if run_id is None:
            experiment = self._find_experiment(client)
            run_id = str(client.create_run(experiment, run_name=self._name).info.run_id)
        elif active is None:
            client.update_run(run_id, status="RUNNING")
        if is_new:
            make = self._mlflow.entities.Param
            params = [make(_clean(key), str(hyperparameters[key])) for key in hyperparameters]
            for first in range(0, len(params), _MAX_PARAMS):
                client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
        return _Run(client, run_id, self._mlflow.entities.Metric, is_ours=active is None)

    def _find_experiment(self, client: Any) -> str:
        """Return the experiment's id."""
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        found = client.get_experiment_by_name(name)
        return found.experiment_id if found else client.create_experiment(name)


class _Run:
    """A run of MLflow, and the thread that sends to it; one of the user's own is not ended."""

    def __init__(self, client: Any, run_id: str, make_metric: Any, *, is_ours: bool) -> None:
        self.id = run_id
        self._client, self._make_metric, self._is_ours = client, make_metric, is_ours
        # MLflow would keep both points of a step that is made again.
        self._last_steps = {
            key: max(metric.step for metric in client.get_metric_history(run_id, key))
            for key in client.get_run(run_id).data.metrics
        }
        self._unsent: list[Any] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-mlflow")
        self._sending: Future[None] | None = None

    def log(self, num_steps: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._unsent += [
            self._make_metric(_clean(name), value, now, num_steps)
            for name, value in values.items()
            if num_steps > self._last_steps.get(_clean(name), -1)
        ]
        last = self._sending
        if last is None or last.done():
            self._sending = self._thread.submit(self._send)
            if last is not None:
                last.result()  # what has failed is said, and tried again with this point

    def _send(self) -> None:
        while self._unsent:
            batch = self._unsent[:_MAX_METRICS]
            self._client.log_batch(self.id, metrics=batch)
            # Not before it is taken, so that a server that is away loses none.
            del self._unsent[: len(batch)]

    def close(self, reason: Reason) -> None:
        try:
            self._thread.submit(self._send).result()
            if self._is_ours:
                self._client.set_terminated(self.id, _STATUSES[reason])
        finally:
            self._thread.shutdown()


def _clean(name: str) -> str:
    """Return a name with what MLflow takes in one."""
    return re.sub(r"[^\w./ -]", "_", name)

"""Stand-ins for the packages of tracking services: what they are told, by run and curve."""

import importlib.machinery
import types
from typing import Any

Points = dict[str, list[tuple[int, float]]]


class Store:
    """What a service holds; `is_away` makes every write fail.

    Attributes:
      runs: by id.
      num_refused: writes that failed.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.is_away, self.num_refused = False, 0

    def check(self) -> None:
        """Raise where the service is away."""
        if self.is_away:
            self.num_refused += 1
            raise ConnectionError("no route to host")

    def make(self, name: str | None) -> Any:
        """Return a new run."""
        run = Run(f"run-{len(self.runs)}", name)
        self.runs[run.id] = run
        return run


class Run:
    """A run: what it was begun with, its points and how it ended."""

    def __init__(self, run_id: str, name: str | None) -> None:
        self.id, self.name = run_id, name
        self.hyperparameters: dict[str, Any] = {}
        self.points: Points = {}
        self.end: Any = None
        self.project: str | None = None

    def add(self, name: str, step: int, value: float) -> None:
        """Add a point to a curve."""
        self.points.setdefault(name, []).append((step, value))


def as_module(name: str, **members: Any) -> Any:
    """Return a module that looks installed."""
    module: Any = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(members)
    return module


def make_wandb(store: Store) -> Any:
    """Return a module in the place of `wandb`, as far as it is used."""

    class Config:
        def __init__(self, run: Run) -> None:
            self._run = run

        def update(self, values: dict[str, Any], allow_val_change: bool) -> None:
            assert allow_val_change
            self._run.hyperparameters |= values

    class Live:
        def __init__(self, run: Run) -> None:
            self.id, self.run, self.config = run.id, run, Config(run)
            steps = [step for curve in run.points.values() for step, _ in curve]
            self.step = max(steps) + 1 if steps else 0

        def log(self, values: dict[str, float], step: int) -> None:
            store.check()
            # The service refuses, with a warning, what is not in order.
            assert step >= self.step
            self.step = step
            for name, value in values.items():
                self.run.add(name, step, value)

        def finish(self, exit_code: int) -> None:
            module.run, self.run.end = None, exit_code

    def init(
        *, project: Any, name: Any, mode: Any, dir: Any, id: Any = None, resume: Any = None
    ) -> Any:
        assert (resume is None) == (id is None)
        run = store.make(name) if id is None else store.runs[id]
        run.project = project
        module.run = Live(run)
        return module.run

    module = as_module("wandb", run=None, init=init)
    return module


def make_mlflow(store: Store) -> Any:
    """Return a module in the place of `mlflow`, as far as it is used."""
    names = types.SimpleNamespace
    experiments = ["Default"]

    class Client:
        def __init__(self, tracking_uri: Any) -> None:
            pass

        def get_experiment_by_name(self, name: str) -> Any:
            return names(experiment_id=name) if name in experiments else None

        def create_experiment(self, name: str) -> str:
            experiments.append(name)
            return name

        def create_run(self, experiment_id: str, run_name: Any) -> Any:
            run = store.make(run_name)
            run.project = experiment_id
            return self.get_run(run.id)

        def get_run(self, run_id: str) -> Any:
            run = store.runs[run_id]
            data = names(metrics=dict.fromkeys(run.points), params=run.hyperparameters)
            return names(info=names(run_id=run_id), data=data)

        def get_metric_history(self, run_id: str, key: str) -> Any:
            return [names(step=step) for step, _ in store.runs[run_id].points[key]]

        def update_run(self, run_id: str, status: str) -> None:
            store.runs[run_id].end = status

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
            store.check()
            run = store.runs[run_id]
            for metric in metrics:
                run.add(metric.key, metric.step, metric.value)
            run.hyperparameters |= {param.key: param.value for param in params}

        def set_terminated(self, run_id: str, status: str) -> None:
            store.runs[run_id].end = status

    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        return names(key=key, value=value, step=step)

    def param(key: str, value: str) -> Any:
        return names(key=key, value=value)

    entities = names(Metric=metric, Param=param)
    return as_module("mlflow", MlflowClient=Client, active_run=lambda: None, entities=entities)

"""WandB and MLflow: what services are told, by stand-ins always, by the packages where they are."""

import importlib.machinery
import io
import json
import struct
import sys
import time
import types
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock.events import BeginTraining, EndTraining
from penstock.handlers import Evaluate, MLflow, StopAt, WandB
from tests.handlers.driving import Source, drive, linear_trainer, resumed
from tests.networks import linear_program, linear_reader
from tests.readers.case import is_missing

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
        if self.is_away:
            self.num_refused += 1
            raise ConnectionError("no route to host")

    def make(self, name: str | None) -> Any:
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
        self.points.setdefault(name, []).append((step, value))


def as_module(name: str, **members: Any) -> Any:
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


HANDLERS = pytest.mark.parametrize("make", [WandB, MLflow], ids=["wandb", "mlflow"])


def needs(package):
    missing = pytest.mark.skipif(is_missing(package), reason=f"{package} is not installed")
    # They warn of themselves, and of what they are made of.
    ignored = pytest.mark.filterwarnings(*(f"ignore:::{m}" for m in (package, "sqlalchemy")))
    return lambda test: pytest.mark.slow(missing(ignored(test)))


@pytest.fixture
def store(monkeypatch):
    store = Store()
    monkeypatch.setitem(sys.modules, "wandb", make_wandb(store))
    monkeypatch.setitem(sys.modules, "mlflow", make_mlflow(store))
    return store


@HANDLERS
def test_steps_epochs_and_tests_are_curves_by_steps_done(make, store):
    tested = iter([0.5, 0.25])
    source = Source(lambda step: {"loss": float(step)})
    log = make("digits", name="a", every_steps=3, test=lambda: {"loss": next(tested)})
    drive(log, num_epochs=2, num_steps=4, source=source)
    (run,) = store.runs.values()
    assert (run.project, run.name) == ("digits", "a")
    assert run.points["train/loss"] == [(3, 2.0), (6, 5.0)]
    assert run.points["epoch/loss"] == [(4, 3.0), (8, 7.0)]
    assert run.points["test/loss"] == [(4, 0.5), (8, 0.25)]
    assert source.steps == [2, 5]
    assert all(source.late)


@HANDLERS
def test_hyperparameters_are_the_users_and_what_the_trainer_says(make, store):
    hyperparameters = {"learning_rate": np.float32(0.5), "net": {"depth": 3}, "none": None}
    log = make(every_steps=1, hyperparameters=hyperparameters)
    trainer = ps.Trainer(linear_program, optax.inject_hyperparams(optax.sgd)(0.5), place="cpu")
    trainer.train(linear_reader(), log)
    (run,) = store.runs.values()
    values = {name: str(value) for name, value in run.hyperparameters.items()}
    assert (values["learning_rate"], values["net/depth"]) == ("0.5", "3")
    assert values["configuration/precision"] == "float32"
    assert (values["devices/platform"], values["parameters/all"]) == ("cpu", "5")
    assert values["versions/jax"] == jax.__version__
    assert not {"none", "parameters/table"} & set(values)
    assert run.points["train/learning_rate"] == [(1, 0.5), (2, 0.5), (3, 0.5)]


@HANDLERS
def test_resumed_training_goes_on_in_its_run(make, store, tmp_path):
    def train(num_steps):
        evaluate = Evaluate(linear_reader(), every_steps=2, file=io.StringIO())
        log = make(every_steps=1, test=evaluate)
        trainer = linear_trainer(checkpoint=tmp_path)
        trainer.train(linear_reader(), [evaluate, log, StopAt(step=num_steps)], num_epochs=3)

    train(4)
    train(99)
    (run,) = store.runs.values()
    assert [step for step, _ in run.points["train/loss"]] == list(range(1, 10))
    assert [step for step, _ in run.points["test/loss"]] == [2, 3, 4, 6, 8, 9]


@HANDLERS
def test_steps_that_are_made_again_stay_as_they_were(make, store):
    killed = make(every_steps=1)

    def on_step(step):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(killed, num_epochs=2, source=Source(1.0), on_step=on_step)
    state = json.loads(json.dumps(killed.get_state()))
    killed(EndTraining("interrupted", KeyboardInterrupt()))
    log = make(every_steps=1)
    drive(log, num_epochs=2, first=4, source=Source(2.0), **resumed(log, state))
    (run,) = store.runs.values()
    assert run.points["train/loss"] == [(n, 1.0 if n <= 6 else 2.0) for n in range(1, 17)]


@HANDLERS
def test_new_training_is_a_new_run(make, store):
    log = make()
    drive(log)
    drive(log)
    assert len(store.runs) == 2


@HANDLERS
@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("completed", (0, "FINISHED")),
        ("stopped", (0, "FINISHED")),
        ("interrupted", (255, "KILLED")),
        ("failed", (1, "FAILED")),
    ],
)
def test_run_ends_as_training_did(make, store, reason, ends):
    drive(make(), end=EndTraining(reason))
    assert store.runs["run-0"].end == ends[make is MLflow]


@HANDLERS
def test_service_that_is_away_is_said_once_and_is_an_error_at_the_end(make, store, caplog):
    log = make(every_steps=1)

    def on_step(step):
        store.is_away = step >= 3
        if make is MLflow and log._sending is not None:
            futures.wait([log._sending])

    with pytest.raises(OSError, match=r"got ConnectionError for the run 'run-0' \(no route to ho"):
        drive(log, on_step=on_step)
    assert store.num_refused > 1
    assert len([r for r in caplog.records if "Training goes on" in r.getMessage()]) == 1
    steps = [step for step, _ in store.runs["run-0"].points["train/loss"]]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) <= 3


def test_mlflow_sends_what_a_server_that_was_away_did_not_take(store):
    def on_step(step):
        store.is_away = 3 <= step < 6

    drive(MLflow(every_steps=1), on_step=on_step)
    assert [step for step, _ in store.runs["run-0"].points["train/loss"]] == list(range(1, 9))


@HANDLERS
def test_error_that_ended_training_is_the_one_to_see(make, store):
    store_away = {"on_step": lambda step: setattr(store, "is_away", True)}
    drive(make(every_steps=1), end=EndTraining("failed", ValueError("a")), **store_away)
    assert store.num_refused


def test_run_of_the_user_is_used_and_left_open(store):
    theirs = sys.modules["wandb"].init(project=None, name="theirs", mode=None, dir=None)
    drive(WandB())
    (run,) = store.runs.values()
    assert (run.name, run.end) == ("theirs", None)
    assert run.points
    assert sys.modules["wandb"].run is theirs


def test_active_run_of_mlflow_is_used_and_left_open(store, monkeypatch):
    client = sys.modules["mlflow"].MlflowClient(None)
    theirs = client.create_run("Default", run_name="theirs")
    monkeypatch.setattr(sys.modules["mlflow"], "active_run", lambda: theirs)
    drive(MLflow(hyperparameters={"rate": 1}))
    (run,) = store.runs.values()
    assert (run.name, run.end, run.hyperparameters) == ("theirs", None, {"rate": "1"})


def test_names_that_mlflow_does_not_take_are_written_with_an_underscore(store):
    drive(MLflow(every_steps=4), source=Source({"top@5 %": 1.0}))
    assert {"train/top_5 _", "epoch/top_5 _"} <= set(store.runs["run-0"].points)


@HANDLERS
def test_other_processes_than_the_first_have_no_run(make, store, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    log = make()
    drive(log)
    assert not store.runs
    assert log.get_state() == {"run_id": None}


@HANDLERS
def test_training_that_was_over_before_opens_no_run(make, store):
    log = make()
    log(BeginTraining(3, 0, 9))
    log(EndTraining("completed", None, 9))
    assert not store.runs


def train_in_two_parts(folder, make):
    """Train three epochs of three steps, stopped after the fourth step and resumed."""
    for num_steps in (4, 99):
        trainer = linear_trainer(checkpoint=folder / "checkpoints")
        trainer.train(linear_reader(), [make(), StopAt(step=num_steps)], 3)


@needs("mlflow")
def test_mlflow_itself_keeps_one_run_of_two_parts(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    options = {"tracking_uri": uri, "every_steps": 1, "test": lambda: float("nan")}
    train_in_two_parts(
        tmp_path, lambda: MLflow("digits", name="a", hyperparameters={"rate": 0.05}, **options)
    )
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    assert run.data.params["rate"] == "0.05"
    assert run.data.params["configuration/precision"] == "float32"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(steps) == list(range(1, 10))
    tests = client.get_metric_history(run.info.run_id, "test/loss")
    assert sorted(metric.step for metric in tests) == [3, 6, 9]
    assert all(np.isnan(metric.value) for metric in tests)


@needs("wandb")
def test_wandb_itself_writes_one_run_of_two_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    options = {"mode": "offline", "every_steps": 1, "test": lambda: float("nan")}
    train_in_two_parts(
        tmp_path,
        lambda: WandB("digits", directory=tmp_path, hyperparameters={"rate": 0.05}, **options),
    )
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # it has the run's id
    deadline, rows = time.monotonic() + 60, []
    # Its process may still write when `finish` has returned.
    while not any(row["_step"] == 9 for row in rows) and time.monotonic() < deadline:
        time.sleep(0.1)
        rows = [row for file in files for row in read_history(file)]
    assert [row["_step"] for row in rows if "train/loss" in row] == list(range(1, 10))
    assert [row["_step"] for row in rows if "epoch/loss" in row] == [3, 6, 9]
    assert [row["_step"] for row in rows if "test/loss" in row] == [3, 6, 9]


def read_history(path: Path):
    """Return the rows in a file that W&B writes offline: LevelDB's log of messages."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts, rows = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part of one
            record = wandb_internal_pb2.Record.FromString(parts)
            parts = b""
            if record.HasField("history"):
                items = record.history.item
                row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                rows.append({"_step": record.history.step.num, **row})
    return rows

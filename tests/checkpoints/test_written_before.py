"""Files that an earlier penstock wrote are still read, and mean what they meant.

What lies in `written_before/` was written on one CPU device by penstock 0.1.0 with JAX 0.10.2,
optax 0.2.8, flax 0.12.8 and Orbax 0.12.8, and stays as it is:

- `objectives` and `handlers`: what `train_objectives` and `train_with_handlers` below left there,
  stopped at step 14, in the middle of the fourth epoch; the picture of `Plot` was deleted.
  They draw nothing: masks are others since they depend on the key and the shape alone.
- `objectives-end` and `handlers-end`: the parameters that the same runs came to without a stop, by
  `save_params`; the first with something `about` them.
- `readers.json`: for readers of the contract's battery the state after two items, and the numbers
  of the samples that came after it.
- `run`: the folder of `penstock train --plugin=tests/commands/tiny.py --model_name=tiny` with two
  epochs and the other flags in its `config.json`.
"""

import csv
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import handlers, layers, optimizers, readers
from penstock.readers import Shard
from tests.checkpoints.runs import StopAfter, every_step
from tests.commands.running import run
from tests.networks import assert_close, linear_data, linear_program, one_device
from tests.readers.cases import ALL
from tests.readers.samples import ids
from tests.source_tree import ROOT

FOLDER = Path(__file__).parent / "written_before"
NUM_STEPS = 20
STATES = json.loads((FOLDER / "readers.json").read_text())


def make_program(name: str) -> Any:
    """Return a program with parameters and running statistics under a name."""

    @layers.scope(name)
    def predict(x: Any) -> Any:
        hidden = layers.batch_norm(layers.fc(x, size=1))
        return hidden + layers.fc(x, size=1)

    def program() -> Any:
        prediction = predict(layers.data("x", shape=[4]))
        error = layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
        return {"loss": error, "size": layers.mean(abs(prediction))}

    return program


def train_objectives(folder: Path | None, num_steps: int | None = None) -> ps.Trainer:
    """Train for five epochs of four batches; the optimizers keep every kind of state of ours."""
    options = optimizers.ScheduleOptions(learning_rate=0.05, learning_rate_decay_type="cosine")
    rate = optimizers.schedule(options, num_steps=30)
    kinds = {
        "averaged": optimizers.get("adam", rate, max_gradient_norm=5.0, moving_average_decay=0.9),
        "followed": optimizers.get("ftrl", 0.1),
        "slow": optax.lookahead(optax.sgd(0.05), sync_period=2, slow_step_size=0.5),
    }
    trainer = ps.Trainer(
        {name: ps.Objective(make_program(name), kind, name) for name, kind in kinds.items()},
        place=one_device(),
        precision=ps.Precision("float32", "dynamic"),
        on_non_finite="skip",
        checkpoint=None if folder is None else every_step(folder / "checkpoints", max_to_keep=1),
    )
    reader = readers.arrays(linear_data(14), 4, shuffle=True, seed=3)
    trainer.train(reader, [] if num_steps is None else StopAfter(num_steps), num_epochs=5)
    return trainer


def train_with_handlers(folder: Path, num_steps: int | None = None) -> tuple[ps.Trainer, Any]:
    """Train for five epochs of four batches with every handler that keeps a state."""
    checkpoint = every_step(folder / "checkpoints", max_to_keep=1)
    trainer = ps.Trainer(
        linear_program, optimizers.get("rmsprop", 0.01), place=one_device(), checkpoint=checkpoint
    )
    with open(os.devnull, "w") as nowhere:
        evaluate = handlers.Evaluate(
            readers.arrays(linear_data(6, seed=1), 4), best_path=folder / "best", file=nowhere
        )
        kept = [
            evaluate,
            handlers.EarlyStopping(patience=4, test=evaluate, file=nowhere),
            handlers.ReduceOnPlateau(patience=1, min_delta=1.0, file=nowhere),
            handlers.CSVLog(folder / "log.csv", every_steps=2, test=evaluate),
            handlers.JSONLog(folder / "log.jsonl", every_steps=2),
            handlers.Plot(folder / "curves.svg", every_steps=1),
        ]
        stop = [] if num_steps is None else [StopAfter(num_steps)]
        trainer.train(read_decorated(), [*kept, *stop], num_epochs=5)
    return trainer, evaluate


def read_decorated() -> Any:
    """Return a reader of batches through most decorators."""
    data = linear_data(14)
    samples = [readers.arrays({name: data[name]}, None) for name in data]
    shuffled = readers.shuffle(readers.compose(*samples), 5, seed=2)
    mapped = readers.xmap_readers(dict, readers.map_readers(dict, shuffled), 2, 3, order=True)
    return readers.buffered(readers.batch(readers.chain(readers.firstn(mapped, 13), mapped), 7), 2)


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    """Return a function that gives a copy of a folder, which a run may go on in."""
    return lambda name: shutil.copytree(FOLDER / name, tmp_path / name)


def assert_has_parameters(trainer: ps.Trainer, folder: str, zeros: Sequence[str] = ()) -> None:
    """Raise unless a trainer came to the parameters in a folder.

    Arguments:
      zeros: parameters that nothing depends on, which are what was rounded.
    """
    values = {name: np.array(value) for name, value in trainer.parameters.items()}
    trainer.load_params(FOLDER / folder)
    expected = dict(trainer.parameters)
    for name in zeros:
        assert max(abs(values.pop(name)), abs(expected.pop(name))) < 1e-5, name
    assert_close(values, expected)


@pytest.mark.slow
def test_run_of_several_objectives_goes_on_from_its_checkpoint(copied):
    trainer = train_objectives(copied("objectives"))
    assert trainer.global_step == NUM_STEPS
    # Batch norm takes the mean away, and with it the bias before it.
    zeros = [f"{name}/fc_0/b" for name in ("averaged", "followed", "slow")]
    assert_has_parameters(trainer, "objectives-end", zeros)


@pytest.mark.slow
def test_run_with_handlers_and_decorators_goes_on_from_its_checkpoint(copied):
    folder = copied("handlers")
    trainer, evaluate = train_with_handlers(folder)
    assert trainer.global_step == NUM_STEPS
    assert [step for step, _ in evaluate.results] == [4, 8, 12, 16, 20]
    assert evaluate.best == evaluate.results[-1]
    assert trainer.update_scale == pytest.approx(0.001)
    rows = list(csv.DictReader((folder / "log.csv").read_text().splitlines()))
    ends = [int(row["global_step"]) for row in rows if row["kind"] == "epoch"]
    assert ends == [step for step, _ in evaluate.results]
    assert len((folder / "log.jsonl").read_text().splitlines()) == 15
    assert_has_parameters(trainer, "handlers-end")


@pytest.mark.parametrize("case", [c for c in ALL if c.name in STATES], ids=lambda case: case.name)
def test_reader_goes_on_from_its_state(case):
    iterator = iter(case.make(Shard()))
    iterator.set_state(STATES[case.name]["state"])
    assert [number for item in iterator for number in ids(item)] == STATES[case.name]["then"]


def test_run_of_the_command_is_evaluated(copied, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, out, err = run(capsys, "eval", str(copied("run")), "--plot=")
    assert (status, err) == (0, "")
    assert "accuracy 80.50%" in out


@pytest.mark.slow
def test_run_of_the_command_goes_on(copied, capsys, monkeypatch):
    folder = copied("run")
    monkeypatch.chdir(ROOT)
    words = (f"--config={folder / 'config.json'}", f"--checkpointDir={folder}", "--num_epochs=3")
    status, out, err = run(capsys, "train", *words)
    assert (status, err) == (0, "")
    # A long path is on a line of its own.
    assert "at step 90, resumed from" in " ".join(out.split())
    rows = list(csv.DictReader((folder / "log.csv").read_text().splitlines()))
    # 45 steps of two epochs on one device, then on the eight of the tests: a batch is for each.
    assert rows[-1]["global_step"] == "96"

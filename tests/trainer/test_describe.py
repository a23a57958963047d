"""`trainer.describe`, and that a run is decided by what it describes."""

import json
import platform

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from tests.distributed.processes import finish, start_module
from tests.networks import PLACES, classifier_program, linear_program, linear_reader, one_device
from tests.trainer.described_run import program


@PLACES
def test_description_names_versions_devices_configuration_and_parameters(place):
    objectives = {
        "first": ps.Objective(linear_program, optax.sgd(0.1)),
        "second": ps.Objective(linear_program, optax.sgd(0.1), updates="fc_0"),
    }
    trainer = ps.Trainer(
        objectives, place=place(), schedule={"first": 2, "second": 1}, steps_per_call=4, seed=7
    )
    described = trainer.describe()
    parts = ["versions", "devices", "configuration", "parameters", "compilations"]
    assert list(described) == parts
    assert described["compilations"] == []
    own = {"python": platform.python_version(), "penstock": ps.__version__}
    libraries = {"jax": jax.__version__, "numpy": np.__version__}
    assert described["versions"] == {**described["versions"], **own, **libraries}
    assert "unknown" not in described["versions"].values()
    assert described["devices"] == {
        "platform": "cpu",
        "kind": "cpu",
        "count": len(place()),
        "processes": 1,
    }
    assert described["configuration"] == {
        "objectives": ["first", "second"],
        "schedule": ["first", "first", "second"],
        "steps_per_call": 4,
        "seed": 7,
        "on_non_finite": "stop",
        "precision": "float32",
        "gradient_accumulation_steps": 1,
        "freeze": [],
        "checkpoint": None,
    }
    assert described["parameters"] == {
        "trainable": 5,
        "all": 5,
        "table": [
            {"name": "fc_0/w", "shape": [4, 1], "dtype": "float32"},
            {"name": "fc_0/b", "shape": [1], "dtype": "float32"},
        ],
    }


def test_running_statistics_are_not_counted_as_trainable():
    parameters = ps.Trainer(program, optax.adam(0.1), place=one_device()).describe()["parameters"]
    assert (parameters["trainable"], parameters["all"]) == (4 * 8 + 8 + 16 + 8 * 3 + 3, 83 + 16)


def test_description_is_written_beside_the_checkpoints_and_leaves_them_readable(tmp_path):
    config = ps.CheckpointConfig(
        directory=tmp_path, save_interval_steps=2, num_best=1, monitor=lambda: 1.0
    )
    trainer = ps.Trainer(linear_program, optax.sgd(0.1), place=one_device(), checkpoint=config)
    described = trainer.describe()
    trainer.train(linear_reader())
    assert json.loads((tmp_path / "run.json").read_text()) == described
    assert trainer.describe() == {**described, "compilations": trainer.describe()["compilations"]}
    assert described["configuration"]["checkpoint"]["save_interval_steps"] == 2
    assert described["configuration"]["checkpoint"]["directory"] == str(tmp_path)
    assert "lambda" in described["configuration"]["checkpoint"]["monitor"]
    files = {path.name for path in tmp_path.iterdir()}
    assert "run.json" in files
    assert not any("tmp" in name for name in files)
    resumed = ps.Trainer(linear_program, optax.sgd(0.1), place=one_device(), checkpoint=config)
    assert resumed.global_step == 3


def test_description_of_a_run_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ps.Trainer(linear_program, optax.sgd(0.1), place=one_device()).describe()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_description_of_numbers_from_numpy_is_json(kind, tmp_path):
    trainer = ps.Trainer(
        classifier_program,
        optax.sgd(0.1),
        place=one_device(),
        steps_per_call=kind(2),
        seed=kind(3),
        checkpoint=tmp_path,
    )
    assert json.loads(json.dumps(trainer.describe()))["configuration"]["seed"] == 3


@pytest.mark.slow
def test_two_processes_of_one_command_give_the_same_bits_and_another_seed_gives_others(tmp_path):
    runs = []
    for name, seeds in (("a", (3,)), ("b", (3, 4))):
        module = "tests.trainer.described_run"
        [(code, output, errors)] = finish([start_module(module, tmp_path / name, *seeds)])
        assert code == 0, errors
        for seed, report in zip(seeds, json.loads(output), strict=True):
            assert (
                json.loads((tmp_path / name / f"{seed}/run.json").read_text())
                == report["described"]
            )
            del report["described"]["configuration"]["checkpoint"]["directory"]
            runs.append(report)
    assert runs[0] == runs[1]
    assert runs[0]["digest"] != runs[2]["digest"]
    assert runs[0]["described"] != runs[2]["described"]


def test_compilations_say_their_batch_size_and_why():
    trainer = ps.Trainer(linear_program, optax.sgd(0.1), place=one_device())
    rows = np.ones((11, 4), np.float32)
    for size in (8, 3):
        trainer.train([{"x": rows[:size], "y": rows[:size, :1]}], num_epochs=1)
    first, second = trainer.describe()["compilations"]
    assert (first["program"], first["num_examples"], first["why"]) == ("train", 8, "")
    assert first["secs"] > 0
    assert (second["num_examples"], second["why"]) == (3, "a batch of 3 examples, after 8")

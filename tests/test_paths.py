"""A path may begin with `~`, wherever a run writes or reads."""

import numpy as np
import pytest

from penstock import _parameters, handlers
from penstock._checkpoint import CheckpointConfig, Contents, Position, Store
from penstock._parameter_files import PARAMETER_NAMES, has_parameters, read_parameters
from penstock.events import BeginTraining, EndTraining


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def test_checkpoints_are_in_the_home_folder(home):
    store = Store(CheckpointConfig(directory="~/runs"))
    store.write(Contents(leaves={"w": np.ones(3)}, position=Position(global_step=5)))
    store.close()
    assert (home / "runs" / "5").is_dir()


def test_parameters_are_in_the_home_folder(home):
    _parameters.save("~/net", {"params": {"w": np.ones(3)}}, about={"a": 1})
    assert (home / "net" / "params.safetensors").is_file()
    assert list(_parameters.read("~/net")) == [("params", ("w",))]
    assert _parameters.read_about("~/net") == {"a": 1}


def test_logs_are_in_the_home_folder(home):
    log = handlers.CSVLog("~/logs/log.csv")
    log(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    log(EndTraining("completed"))
    assert (home / "logs" / "log.csv").is_file()


def test_parameters_to_start_from_are_found_in_the_home_folder(home):
    _parameters.save("~/net", {"params": {"w": np.ones(3)}})
    assert has_parameters("~/net")
    assert list(read_parameters("~/net")) == [("params", ("w",))]


def test_newest_checkpoint_in_the_home_folder_has_parameters(home):
    store = Store(CheckpointConfig(directory="~/runs"))
    extra = {PARAMETER_NAMES: {"leaf": ["params", "w"]}}
    store.write(
        Contents(leaves={"leaf": np.ones(3)}, position=Position(global_step=5), extra=extra)
    )
    store.close()
    assert list(read_parameters("~/runs")) == [("params", ("w",))]

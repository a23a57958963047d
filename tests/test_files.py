"""Files that appear whole or not at all, and paths as users write them."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from penstock import _parameters, handlers
from penstock._checkpoint import CheckpointConfig, Contents, Position, Store
from penstock._files import cache_folder, replacing, write_tensors
from penstock._parameters import PARAMETER_NAMES, has_parameters, read_parameters
from penstock.events import BeginTraining, EndTraining


@pytest.mark.parametrize("name", ["notes.txt", "a" * 255])
def test_block_that_ends_well_replaces_the_file(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def write_half(path: Path, error: BaseException) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_block_that_fails_leaves_the_old_file_alone(error: BaseException, tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_arrays_on_the_disk_may_be_read_by_whom_the_umask_lets(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    before = os.umask(0o027)
    try:
        write_tensors(path, {"a": np.arange(3)}, {"about": "it"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert load_file(path)["a"].tolist() == [0, 1, 2]


def test_user_without_a_home_has_the_cache_folder_of_a_container(monkeypatch):
    for variable in ("HOME", "PENSTOCK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert cache_folder() == Path("/.cache/penstock")


def test_tilde_is_the_home_folder_of_checkpoints_parameters_and_logs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    store = Store(CheckpointConfig(directory="~/runs"))
    extra = {PARAMETER_NAMES: {"leaf": ["params", "w"]}}
    position = Position(global_step=5)
    store.write(Contents(leaves={"leaf": np.ones(3)}, position=position, extra=extra))
    assert (tmp_path / "runs" / "5").is_dir()
    assert list(read_parameters("~/runs")) == [("params", ("w",))]  # of the newest checkpoint
    _parameters.save("~/net", {"params": {"w": np.ones(3)}}, about={"a": 1})
    assert (tmp_path / "net" / "params.safetensors").is_file()
    assert has_parameters("~/net")
    assert list(read_parameters("~/net")) == [("params", ("w",))]
    assert _parameters.read_about("~/net") == {"a": 1}
    log = handlers.CSVLog("~/logs/log.csv")
    log(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    log(EndTraining("completed"))
    assert (tmp_path / "logs" / "log.csv").is_file()


def test_file_of_a_relative_path_appears_where_the_block_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with replacing(Path("notes.txt")) as temporary:
        temporary.write_text("whole")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
    assert (tmp_path / "notes.txt").read_text() == "whole"
    assert os.listdir(tmp_path / "elsewhere") == []

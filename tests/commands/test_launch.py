"""`penstock launch`: what its words stand for, and what it hands on."""

import subprocess
import sys
import types

import pytest

from penstock.commands.launch import find_program
from penstock.commands.launch import run as launch
from tests.commands.running import fail, penstock, run


@pytest.fixture
def folder(tmp_path):
    """Work in a folder with a script of each kind."""
    (tmp_path / "a script.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "tool").write_text("#!/usr/bin/env python3\nprint('tool')")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho run\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "notes.txt").write_text("no program")
    (tmp_path / "eval").write_text("#!/usr/bin/env python3\nprint('a command comes first')")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["train", "--model_name=lenet"], ["{}", "-m", "penstock", "train", "--model_name=lenet"]),
        (["eval"], ["{}", "-m", "penstock", "eval"]),
        (["import-weights"], ["{}", "-m", "penstock", "import-weights"]),
        (["a script.py", "--", "x"], ["{}", "a script.py", "--", "x"]),
        (["tool", "1"], ["{}", "tool", "1"]),
        (["-m", "json.tool", "x"], ["{}", "-m", "json.tool", "x"]),
        (["./run.sh"], ["./run.sh"]),
        (["sh", "-c", "exit"], ["sh", "-c", "exit"]),
    ],
)
def test_words_stand_for_a_program(folder, words, program):
    assert find_program(words) == [word.replace("{}", sys.executable) for word in program]


@pytest.mark.parametrize(
    ("options", "name", "program"),
    [
        ([], "local_launch.launch", [sys.executable, "-m", "penstock", "eval", "--x"]),
        (["--on=ray"], "ray_runs.launch_on_ray", ["eval", "--x"]),
    ],
)
def test_whole_command_of_penstock_is_the_same_as_its_words(options, name, program, monkeypatch):
    started = []
    monkeypatch.setattr(
        f"penstock.distributed.{name}", lambda words, *_, **__: started.append(words) or 0
    )
    for words in (["eval", "--x"], ["penstock", "eval", "--x"]):
        assert launch(["-n", "2", *options, "--", *words]) == 0
    assert started == [program, program]


def test_more_processes_than_gpus_are_a_usage_error(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    err = fail(capsys, "launch", "-n", "2", "--place", "gpu", "--", "train", status=2)
    assert "penstock launch: num_processes got 2 on GPUs, expected at most 1" in err


@pytest.mark.parametrize("name", ["--max-restarts", "--max_restarts"])
def test_script_runs_once_a_process_with_its_own_words(folder, name):
    done = penstock(folder, "launch", "-n2", name, "1", "--", "a script.py", "-n", "3", "--", "x y")
    assert sorted(done.stdout.splitlines()) == [
        "[0] ['-n', '3', '--', 'x y']",
        "[1] ['-n', '3', '--', 'x y']",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_exit_status_is_that_of_the_program(folder):
    done = penstock(folder, "launch", "-n", "1", "--", "sh", "-c", "exit 5")
    assert done.returncode == 5
    assert done.stderr == "penstock launch: process 0 ended with code 5\n"


@pytest.mark.parametrize(
    ("size", "least", "most"), [("3", None, 3), ("2:4", 2, 4)], ids=["fixed", "elastic"]
)
def test_group_on_ray_is_handed_on_as_it_was_asked_for(size, least, most, monkeypatch, capsys):
    arguments = {}

    def launch_on_ray(words: list[str], **options) -> int:
        arguments.update(options, words=list(words))
        return 75

    # What starts a cluster takes 20 s: tests of Ray itself are elsewhere.
    module = types.ModuleType("penstock.distributed.ray_runs")
    monkeypatch.setattr(module, "launch_on_ray", launch_on_ray, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    words = ["--on", "ray", "--address=auto", "--max-restarts=3", "--hang=60", "--", "train", "-x"]
    assert run(capsys, "launch", "-n", size, *words)[0] == 75
    assert arguments == {
        "words": ["train", "-x"],
        "num_processes": most,
        "min_processes": least,
        "max_restarts": 3,
        "address": "auto",
        "hang_secs": 60.0,
    }


def test_closed_stdout_is_no_failure_of_a_command():
    command = f"'{sys.executable}' -m penstock --version >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")

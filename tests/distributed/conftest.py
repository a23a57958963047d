"""Scripts that are launched as a group: quick ones, as they need no JAX."""

import subprocess
import sys

import pytest

from penstock.distributed import local_launch
from tests.source_tree import ROOT

# What the scripts begin with. `wait` ends after a minute: a failing test leaves nothing for long.
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["JAX_PROCESS_ID"])
restarts = int(os.environ["PENSTOCK_RESTARTS"])
def wait():
    time.sleep(60)
    os._exit(99)
def say_ready():
    Path(__file__).with_name(f"{rank}.ready").write_text(str(os.getpid()))
def wait_for_ready(other):
    path = Path(__file__).with_name(f"{other}.ready")
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    return int(path.read_text())
"""


@pytest.fixture
def write(tmp_path):
    """Write a script; return the words that run it."""

    def write_script(body: str) -> list[str]:
        path = tmp_path / "a script.py"
        path.write_text(PRELUDE + body, encoding="utf-8")
        return [sys.executable, str(path)]

    return write_script


@pytest.fixture
def run(write, capfd):
    """Run a script as a group; return status, stdout and the lines of stderr."""

    def run_script(body: str, num_processes: int = 2, **options):
        capfd.readouterr()
        status = local_launch.launch(write(body), num_processes, **options)
        printed = capfd.readouterr()
        return status, printed.out, printed.err.splitlines()

    return run_script


@pytest.fixture
def launch_apart():
    """Run `penstock launch -n 2` in a process of its own, which ends with the test."""
    started = []

    def start(words: list[str], *options: str, **streams) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "launch", "-n", "2", *options, "--", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=ROOT, **(pipes | streams)))
        return started[-1]

    yield start
    for launched in started:
        launched.kill()
        launched.wait()
        for stream in filter(None, (launched.stdout, launched.stderr)):
            stream.close()

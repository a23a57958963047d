"""Where the launchers are that people have, and what a run under them is compared with."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import compiling
from tests.distributed.processes import finish, free_port, jax_variables
from tests.distributed.slurm_cluster import find
from tests.source_tree import ROOT

SCRIPT = ROOT / "tests" / "distributed" / "launched_training.py"
INSTALL = "scripts/install_launchers.sh installs it"
SECONDS = 240
"""How long a run may take: Ray starts nine processes."""


def venv() -> Path:
    """Return the environment with torchrun and Ray, which sees the packages of this one."""
    return Path(os.environ.get("PENSTOCK_LAUNCHERS") or f"{sys.prefix}-launchers")


def require_programs(*programs: str) -> list[str]:
    """Return where programs are; skip the test where one is missing, in `make test-all` fail it."""
    paths = [find(program) for program in programs]
    _require(programs, paths)
    return [path for path in paths if path]


def require_python(module: str) -> str:
    """Return the Python of the launchers' environment, where it has a module."""
    python = venv() / "bin" / "python"
    search = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    has_it = python.exists() and subprocess.run([str(python), "-c", search]).returncode == 0
    _require([f"{module} in {venv()}"], [str(python) if has_it else None])
    return str(python)


def _require(names, paths) -> None:
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    if missing and os.environ.get("PENSTOCK_REQUIRE_EXTRAS") == "1":
        pytest.fail(f"{', '.join(missing)} is missing: {INSTALL}")
    if missing:
        pytest.skip(f"{', '.join(missing)} is missing: {INSTALL}")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process with one device, found by no launcher's variables."""
    placing = ("JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "PENSTOCK_RESTARTS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(placing)}
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {"XLA_FLAGS": compiling.xla_flags(1), "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    return {**kept, **settings, "PYTHONPATH": python_path, **more}


def run(words: list[str], folder: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command; end it where it takes too long, and all that it started."""
    with start(words, folder, **more) as process:
        out, errors = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


@contextlib.contextmanager
def start(words: list[str], folder: Path = ROOT, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; afterwards it has to be gone, with all that it started."""
    mark = f"PENSTOCK_TEST_MARK={secrets.token_hex(8)}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        words,
        env=environment(**more, **{name: value}),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        _wait_until_gone(mark)
    except BaseException:
        for pid in _find_marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        print(*process.communicate(), sep="\n")  # pytest shows it beside the error
        raise


def _wait_until_gone(mark: str, secs: float = 30.0) -> None:
    """Wait for what ends after the command, such as daemons; raise where something does not."""
    end = time.monotonic() + secs
    while left := _find_marked(mark):
        if time.monotonic() > end:
            raise RuntimeError(f"{left} are still there {secs:g} s after what started them.")
        time.sleep(0.1)


def _find_marked(mark: str) -> list[int]:
    """Return the processes that have a mark in their environment."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone, or of another user
            if mark.encode() in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


def read_result(done: subprocess.CompletedProcess[str]) -> dict:
    """Return what process 0 printed, whatever the launcher put before it."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "RESULT " in line]
    assert len(lines) == 1, done.stdout + done.stderr
    return json.loads(lines[0].partition("RESULT ")[2])


def run_processes(count: int, folder: Path) -> dict:
    """Return what the script has that nobody disturbs, in so many processes that we start."""
    port, words = free_port(), [sys.executable, str(SCRIPT), str(folder)]
    variables = [jax_variables(port, index, count) if count > 1 else {} for index in range(count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(words, env=environment(**own), cwd=ROOT, **pipes) for own in variables
    ]
    ended = [subprocess.CompletedProcess(words, *result) for result in finish(started)]
    assert all(done.returncode == 0 for done in ended), [done.stderr for done in ended]
    return read_result(ended[0])  # process 0 alone says it

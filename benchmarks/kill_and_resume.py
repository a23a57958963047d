"""Kill a training process with SIGKILL again and again, resume it, and compare the bits.

    python -m benchmarks kill_and_resume --kills 100

Some kills come at any time from the start of the process, some at any time in training, and some
during a save: the process is stopped, and killed if a temporary folder exists. After each kill,
every complete checkpoint must be readable. At the end every array of the state (parameters, running
statistics, Adam's moments, metrics) must have the same bits as in an uninterrupted run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import _killed_run, _timing
from penstock._checkpoint import Store

POLL_SECS = 0.002


@dataclasses.dataclass
class Result:
    """The results of the kills.

    Attributes:
      kills: number of kills by phase: `starting`, `training` or `saving`.
      resumes: number of processes that resumed from the newest checkpoint.
      num_read: number of checkpoints that were read after the kills.
      unreadable: what was wrong with the others.
      num_steps: steps of the finished run.
      has_equal_bits: whether its state equals that of an uninterrupted run.
    """

    kills: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("starting", "training", "saving"), 0)
    )
    resumes: int = 0
    num_read: int = 0
    unreadable: list[str] = dataclasses.field(default_factory=list)
    num_steps: int = 0
    has_equal_bits: bool = False


def run(folder: Path, *, num_kills: int, seed: int = 0) -> Result:
    """Train in `folder` to the end, with a number of kills on the way.

    Raises:
      RuntimeError: a process failed, or did not resume from the newest checkpoint.
    """
    result, chosen, newest = Result(), random.Random(seed), 0
    for number in range(num_kills):
        kinds, weights = ("saving", "training", "anywhere"), (5, 4, 1)
        kind = chosen.choices(kinds, weights)[0] if number else "saving"
        process = _started(folder, num_epochs=10**6)
        try:
            _wait_for_a_moment(kind, chosen, folder, process)
        finally:
            process.kill()
            process.wait()
        has_begun = _note_start(result, folder, newest)
        in_save = "saving" if _unfinished(folder) else "training"
        result.kills[in_save if has_begun else "starting"] += 1
        newest = max(_readable(result, folder), default=0)
    num_epochs = newest // len(_killed_run.reader()) + 2
    _finish(_started(folder, num_epochs))
    _note_start(result, folder, newest)
    plain = folder / "plain"
    plain.mkdir()
    _finish(_started(plain, num_epochs, "--plain"))
    killed, expected = (_leaves(each / "final.npz") for each in (folder, plain))
    result.has_equal_bits = killed == expected
    result.num_steps = num_epochs * len(_killed_run.reader())
    return result


def _started(folder: Path, num_epochs: int, *options: str) -> subprocess.Popen[str]:
    (folder / "begun").unlink(missing_ok=True)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        # Each process compiles the same: nearly all the time of a life that ends after a second.
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks._killed_run", folder, str(num_epochs), *options],
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )


def _wait_for_a_moment(
    kind: str, chosen: random.Random, folder: Path, process: subprocess.Popen[str]
) -> None:
    pause_secs, late_secs = chosen.uniform(0, 2), chosen.uniform(0, 0.04)
    if kind == "anywhere":
        time.sleep(1.5 * pause_secs)
        return
    _wait_until(process, (folder / "begun").exists)
    if kind == "saving":
        # Two, so that one is left where the kill takes a save that replaces the other.
        _wait_until(process, lambda: len(Store(_killed_run.config(folder)).steps()) > 1)
    time.sleep(pause_secs)
    if kind == "saving":
        _stop_in_a_save(process, folder, late_secs)


def _stop_in_a_save(process: subprocess.Popen[str], folder: Path, late_secs: float) -> None:
    """Stop the process while a save is unfinished, however busy the machine is."""
    while True:
        _wait_until(process, lambda: bool(_unfinished(folder)))
        time.sleep(late_secs)
        process.send_signal(signal.SIGSTOP)
        # Signals arrive when they arrive; what the process does before that must be seen.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if _unfinished(folder):
            return
        process.send_signal(signal.SIGCONT)
        late_secs /= 2


def _wait_until(process: subprocess.Popen[str], is_so: Callable[[], bool]) -> None:
    while not is_so():
        if process.poll() is not None:
            raise RuntimeError(f"the training process ended with {process.returncode}; see its log")
        time.sleep(POLL_SECS)


def _finish(process: subprocess.Popen[str]) -> None:
    if process.wait():
        raise RuntimeError(f"the training process ended with {process.returncode}; see its log")


def _unfinished(folder: Path) -> list[Path]:
    """Return what a save has begun."""
    return list((folder / "checkpoints").glob(".saving-*"))


def _note_start(result: Result, folder: Path, newest: int) -> bool:
    """Note whether a process came so far as to train, and check where it began."""
    begun = folder / "begun"
    if not begun.exists():
        return False
    step = int(begun.read_text())
    if step != newest:
        raise RuntimeError(f"a process began at global step {step}, expected {newest}")
    result.resumes += step > 0
    return True


def _readable(result: Result, folder: Path) -> list[int]:
    """Return the steps of the checkpoints, each read whole; in a copy: reading tidies up."""
    copy = folder / "copy"
    if (folder / "checkpoints").exists():
        shutil.copytree(folder / "checkpoints", copy / "checkpoints")
    store, steps = Store(_killed_run.config(copy)), []
    for step in store.steps():
        try:
            store.read(step)
            steps.append(step)
        except ValueError as error:
            result.unreadable.append(str(error))
    shutil.rmtree(copy, ignore_errors=True)
    result.num_read += len(steps)
    return steps


def _leaves(path: Path) -> list[tuple[str, tuple[int, ...], bytes]]:
    with np.load(path) as file:
        return [(str(file[k].dtype), file[k].shape, file[k].tobytes()) for k in file.files]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kill_and_resume")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), num_kills=options.kills, seed=options.seed)
    kills = sum(result.kills.values())
    rows = [
        ["kills", str(kills)],
        *([f"kills while {moment}", str(count)] for moment, count in result.kills.items()),
        ["resumes from a checkpoint", str(result.resumes)],
        ["checkpoints read after the kills", str(result.num_read)],
        ["unreadable checkpoints", str(len(result.unreadable))],
        ["steps of the run", str(result.num_steps)],
        ["equal bits at the end", "yes" if result.has_equal_bits else "NO"],
    ]
    print(f"{_timing.environment()}, {time.perf_counter() - start:.0f} s\n")
    print(_timing.table(["", f"seed {options.seed}"], rows))
    for line in result.unreadable:
        print(line)

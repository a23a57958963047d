"""Kill one of several processes with SIGKILL again and again, and compare the bits of the end.

    python -m benchmarks killed_groups --kills 20 --processes 3 [--launcher launch|mpirun|srun]

`penstock launch --max_restarts` restarts the group by itself; mpirun and srun end, and are started
again here, as a cluster's queue does. Shortly after all processes are training, one of them, chosen
at random, is killed. At the end the parameters must have the same bits as in an uninterrupted run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _timing, failures

SECS_BETWEEN, STEP_SECS = (0.0, 1.5), 0.03
LIMIT_SECS = 180.0


def run(
    launcher: Sequence[str], folder: Path, *, num_processes: int, num_kills: int, seed: int = 0
) -> tuple[list[int], str]:
    """Return which processes were killed, and the line with the result.

    Raises:
      RuntimeError: the group did not come back, or did not end well.
    """
    chosen, killed = random.Random(seed), list[int]()
    num_epochs = count_epochs(num_kills)
    process = start(launcher, folder, num_epochs)
    for _ in range(num_kills):
        pids = _wait_for_pids(process, folder, num_processes)
        time.sleep(chosen.uniform(*SECS_BETWEEN))
        victim = chosen.randrange(num_processes)
        os.kill(pids[victim], signal.SIGKILL)
        killed.append(victim)
        # Until all are gone they may write their numbers once more.
        while any(_is_alive(pid) for pid in pids.values()):
            time.sleep(0.02)
        for path in folder.glob("pid-*"):
            path.unlink()
        if "launch" not in launcher:
            process.communicate(timeout=LIMIT_SECS)
            process = start(launcher, folder, num_epochs)
    output, _ = process.communicate(timeout=10 * LIMIT_SECS)
    results = [line for line in output.splitlines() if "RESULT" in line]
    if process.returncode or not results:
        raise RuntimeError(f"the group ended with {process.returncode}:\n{output[-3000:]}")
    return killed, results[-1].partition("RESULT ")[2]


def count_epochs(num_kills: int) -> int:
    """Return how many epochs it takes for every kill to come during training."""
    return 16 * (num_kills + 1)


def start(
    launcher: Sequence[str], folder: Path, num_epochs: int, step_secs: float = STEP_SECS
) -> subprocess.Popen[str]:
    """Start the processes of a run, with stdout and stderr in one stream."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_root())}
    return subprocess.Popen(
        [*launcher, str(failures.SCRIPT), "none", str(folder), str(num_epochs), str(step_secs)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _root() -> Path:
    return failures.SCRIPT.parents[1]


def _wait_for_pids(
    process: subprocess.Popen[str], folder: Path, num_processes: int
) -> dict[int, int]:
    ends_at = time.monotonic() + LIMIT_SECS
    while time.monotonic() < ends_at:
        paths = [folder / f"pid-{index}" for index in range(num_processes)]
        texts = [path.read_text() if path.exists() else "" for path in paths]
        if all(texts):
            return {index: int(text) for index, text in enumerate(texts)}
        if process.poll() is not None:
            raise RuntimeError(f"the group ended with {process.returncode} before a kill")
        time.sleep(0.02)
    raise RuntimeError("the group did not come back")


def choose_launcher(name: str, num_processes: int, num_kills: int) -> list[str]:
    """Return the launcher's part of the command, before the script."""
    words = [each if each != "2" else str(num_processes) for each in failures.LAUNCHERS[name]]
    if name == "launch":
        words[-1:] = ["--max_restarts", str(num_kills), "--"]
    return words


def main(arguments: Sequence[str] = ()) -> None:
    """Print the results of the kills."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks killed_groups")
    parser.add_argument("--launcher", default="launch", choices=failures.LAUNCHERS)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=3)
    chosen = parser.parse_args(list(arguments))
    launcher = choose_launcher(chosen.launcher, chosen.processes, chosen.kills)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as plain:
        counts = {"num_processes": chosen.processes}
        killed, result = run(launcher, Path(folder), num_kills=chosen.kills, **counts)
        secs = time.monotonic() - begun
        # As many epochs, and nobody killed.
        process = start(launcher, Path(plain), count_epochs(chosen.kills), 0.0)
        output, _ = process.communicate(timeout=10 * LIMIT_SECS)
        expected = output.partition("RESULT ")[2].splitlines()[0]
    print(_timing.environment())
    print()
    bits = "equal" if json.loads(result) == json.loads(expected) else "OTHER"
    rows = [
        [chosen.launcher, str(chosen.processes), str(len(killed)), f"{secs:.0f}", bits],
    ]
    header = ["launcher", "processes", "kills", "s in all", "bits of the parameters at the end"]
    print(_timing.table(header, rows))
    print(f"\nkilled: {killed}; steps: {json.loads(result)['step']}")


if __name__ == "__main__":
    main(sys.argv[1:])

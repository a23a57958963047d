"""What happens when one process of a run fails: how soon the others end, and what they say.

    python -m benchmarks failures [--launchers launch mpirun srun] [--faults "SIGKILL" ...]

Makes the table of docs/pods.md with real processes on this machine. `mpirun` needs Open MPI, `srun`
a running Slurm; `scripts/install_launchers.sh` installs both, and

    python -m tests.distributed.slurm_cluster python -m benchmarks failures --launchers srun

starts one for the command.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _faulty_run, _timing

SCRIPT = Path(_faulty_run.__file__)
HEARTBEAT_SECS, HANG_SECS = 4.0, 6.0
"""Shorter than by default, so that the table is made in minutes; a machine in use needs the 30."""

LIMIT_SECS = 120.0

LAUNCHERS: dict[str, list[str]] = {
    "launch": [sys.executable, "-m", "penstock", "launch", "-n", "2", "--"],
    "mpirun": [
        *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"),
        *("--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"),
        *("--mca", "oob_tcp_if_include", "lo", sys.executable),
    ],
    "srun": ["srun", "--kill-on-bad-exit=1", "-n", "2", sys.executable],
}
"""By name: what stands before the script and its arguments."""


@dataclasses.dataclass
class Outcome:
    """How a run ended.

    Attributes:
      secs: from the fault to the end of the last process.
      code: the launcher's exit code.
      line: the line that names the fault.
      output: everything that was written.
    """

    secs: float
    code: int
    line: str
    output: str


def run(
    launcher: Sequence[str], fault: str, folder: Path, *, options: Sequence[str] = ()
) -> Outcome:
    """Run a fault under a launcher; its processes are gone when this returns."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(SCRIPT.parents[1]),
        "PENSTOCK_HEARTBEAT_SECS": str(HEARTBEAT_SECS),
        "PENSTOCK_HANG_SECS": str(HANG_SECS),
    }
    process = subprocess.Popen(
        [*launcher, str(SCRIPT), fault, str(folder), *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + "\nNOT OVER"
    ended = time.time()
    begun = folder / "fault"
    secs = ended - float(begun.read_text()) if begun.exists() else 0.0
    return Outcome(secs, process.returncode, find_line(output), output)


def find_line(output: str) -> str:
    """Return the line that names the fault: from another process if any, else the error itself."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [re.sub(r"^\[\d+\] ?", "", line) for line in lines]
    named = [line for line in lines if re.search(r"process \d+ [a-z]", line)]
    named = [line for line in named if "joined" not in line and "penstock launch" not in line]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exit)\b", line)]
    found = (named or errors or [""])[0]
    return found.removeprefix("penstock._errors.").removeprefix("penstock: ")


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failures")
    parser.add_argument("--launchers", nargs="+", default=list(LAUNCHERS), choices=LAUNCHERS)
    parser.add_argument("--faults", nargs="+", default=list(_faulty_run.FAULTS))
    chosen = parser.parse_args(list(arguments))
    rows = []
    for fault in chosen.faults:
        for name in chosen.launchers:
            if shutil.which(LAUNCHERS[name][0]) is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                prepare(fault, Path(folder))
                outcome = run(LAUNCHERS[name], fault, Path(folder))
            row = [fault, name, f"{outcome.secs:.1f}", str(outcome.code), outcome.line[:160]]
            rows.append(row)
            print(" | ".join(row), file=sys.stderr, flush=True)
    print(_timing.environment())
    print()
    print(_timing.table(["one process", "launcher", "s to the end", "code", "line"], rows))


def prepare(fault: str, folder: Path) -> None:
    """Write the parameters that only process 0 can read."""
    if fault != "param_path on one machine alone":
        return
    import optax

    import penstock as ps

    ps.Trainer(_faulty_run.program, optax.sgd(0.1), seed=5).save_params(folder / "params")


if __name__ == "__main__":
    main(sys.argv[1:])

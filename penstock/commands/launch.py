"""`penstock launch`: start a command, a script or a program as several processes."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from penstock._errors import nearest
from penstock.commands import _COMMANDS
from penstock.commands._argument_parser import option, parse
from penstock.commands._failures import UsageError, check, check_numbers, command

_EPILOG = """After -- comes a command of penstock, a Python file, -m MODULE or any other
program. Each process has one device, a GPU or the CPU. The processes find each
other through their environment: a script calls ps.distributed.initialize(), a
command of penstock does so by itself. Output is printed in whole lines, each
with the number of its process, such as [0]. Progress bars are printed when
they end, and every 5 s.

Ctrl-C, SIGTERM and SIGHUP are passed on once, and the processes save and end.
A second Ctrl-C kills them. When one process fails, the others end within 10 s.
Programs that they leave running are killed too.

exit status: 0 when all processes ended with 0, else that of the first that
failed (137 for SIGKILL); 2 for a mistake in the flags. The group is started
again after 75 and after SIGABRT, SIGBUS, SIGKILL and SIGSEGV, unless it was
lost within 5 s of its start three times in a row. It is never started again
after an error in the program (1), SIGTERM (143) or Ctrl-C (130).

environment of a process: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES,
JAX_PROCESS_ID, PENSTOCK_LOCAL_RANK, PENSTOCK_RESTARTS (0 at first),
PENSTOCK_HANG_SECS, PENSTOCK_HEARTBEAT_SECS; CUDA_VISIBLE_DEVICES on GPUs; and
OMP_NUM_THREADS, its share of the cores, unless it is already set.

examples:
  penstock launch -n 2 -- train
  penstock launch -n 4 --max_restarts=3 -- train.py --epochs=10
  penstock launch -n 2:16 --on=ray --address=auto --max_restarts=3 -- train"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchFlags:
    """Start a command, a script or a program as several processes that train as one.

    On this machine, or on the machines of a Ray cluster.

    Arguments:
      num_processes: how many processes; with --on=ray also MIN:MAX, as many as there is room for.
      max_restarts: how often to restart all processes, from the last checkpoint, after one is lost.
      hang: seconds without progress after which a process counts as stuck.
      heartbeat: seconds without a sign of life after which a process counts as lost.
      grace: seconds to save after a signal, before the processes are killed.
      linger: seconds for the others to end by themselves after one has failed.
      place: where the processes compute; by default on GPUs if there are any.
      on: the engine that starts them; without it they run on this machine.
      address: the address of the Ray cluster.
    """

    num_processes: str = option("N", short="-n")
    max_restarts: int = 0
    hang: float | None = None
    heartbeat: float | None = None
    grace: float = 30.0
    linger: float = 8.0
    place: Literal["cpu", "gpu"] | None = None
    on: Literal["ray"] | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        least, most = self.size
        if not 1 <= least <= most or (self.on is None and ":" in self.num_processes):
            expected = "a number of 1 or more, or with --on=ray MIN:MAX, such as 2:4"
            raise UsageError(f"-n got {self.num_processes!r}, expected {expected}.")
        check_numbers(self, "max_restarts>=0 grace>=0 linger>=0 hang>0 heartbeat>0")
        # What would be left aside in silence.
        unused = ("address",) if self.on is None else ("heartbeat", "grace", "linger", "place")
        where = "without --on=ray" if self.on is None else "with --on=ray"
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in unused:
            expected = f"none {where}. It has no meaning there. Leave it out."
            check(self, name, getattr(self, name) == defaults[name], expected)

    @property
    def size(self) -> tuple[int, int]:
        """The smallest and the largest number of processes; zeros where it cannot be read."""
        if re.fullmatch(r"[0-9]{1,6}(:[0-9]{1,6})?", self.num_processes) is None:
            return 0, 0
        least, _, most = self.num_processes.partition(":")
        return int(least), int(most or least)


@command()
def run(argv: list[str]) -> int:
    """Run `penstock launch` with the arguments after the command's name."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = argv[end + 1 :]
    # Who writes the whole command means the same, with this Python.
    if words[:1] == ["penstock"] and len(words) > 1:
        words = words[1:]
    usage = " -- COMMAND [ARGUMENTS]"
    where = "Write what to start after `--`: penstock launch -n 2 -- train."
    try:
        flags, _ = parse(LaunchFlags, argv[:end], epilog=_EPILOG, usage=usage)
    except UsageError as error:
        raise UsageError(f"{error} {where}" if end == len(argv) else str(error)) from error
    if not words:
        raise UsageError(f"got nothing to start, expected a program. {where}")
    program, (least, most) = find_program(words), flags.size
    common: Any = {"max_restarts": flags.max_restarts, "hang_secs": flags.hang}
    # Imported here and below: `penstock launch --help` needs none of it.
    if flags.on is not None:
        # A worker of Ray runs Python code in itself.
        if words[0] not in (*_COMMANDS, "-m") and not words[0].endswith(".py"):
            raise UsageError(
                f"got the program {words[0]!r}, expected with --on=ray a command of penstock, a "
                "file that ends in .py or -m MODULE."
            )
        from penstock.distributed.ray_runs import launch_on_ray

        fewest = least if ":" in flags.num_processes else None
        common["address"] = flags.address
        return launch_on_ray(words, num_processes=most, min_processes=fewest, **common)
    from penstock.distributed.local_launch import launch

    common |= {"heartbeat_secs": flags.heartbeat, "grace_secs": flags.grace}
    try:
        return launch(program, most, linger_secs=flags.linger, place=flags.place, **common)
    # It was found before anything has started: more processes than GPUs.
    except ValueError as error:
        raise UsageError(str(error)) from error


def find_program(words: Sequence[str]) -> list[str]:
    """Return the program and the arguments that the words behind `--` stand for.

    Raises:
      UsageError: they stand for none; names the nearest command or file.

    >>> find_program(["ls", "-l"])
    ['ls', '-l']
    """
    name, names = words[0], [name for name in _COMMANDS if name != "launch"]
    if name in names:
        return [sys.executable, "-m", "penstock", *words]
    if name == "-m":
        if len(words) == 1:
            raise UsageError("-m got no module, expected its name: -m MODULE.")
        return [sys.executable, *words]
    from penstock.distributed.local_launch import is_python_script

    path = Path(name)
    is_file = path.is_file()
    if is_file and (path.suffix == ".py" or is_python_script(path)):
        return [sys.executable, *words]
    if path.suffix != ".py" and shutil.which(name) is not None:
        return list(words)
    files = [str(file) for file in path.parent.glob("*.py")]
    names_there = files if path.suffix == ".py" else [*names, *files]
    hint = " It is a file that may not be executed." if is_file else nearest(name, names_there)
    # Processes that start processes are no slip of the keys.
    hint = "" if name == "launch" else hint
    raise UsageError(
        f"got the program {name!r}, expected a command of penstock ({', '.join(names)}), a Python "
        f"file, -m MODULE or a program that can be run.{hint}"
    )

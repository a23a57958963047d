"""Start a group of processes on this machine, and see it to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock._errors import check_count, message
from penstock._guardian import Guardian
from penstock.distributed._child_environment import (
    Place,
    assign_devices,
    choose_port,
    make_group_variables,
    make_process_variables,
)
from penstock.distributed._child_process import ChildProcess
from penstock.distributed._forwarded_signals import ForwardedSignals
from penstock.distributed._line_printer import LinePrinter
from penstock.distributed._supervision import Outcome, Patience, supervise
from penstock.distributed.exit_codes import is_again, to_status

# This machine has no room for another process.
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
# A group that fails this soon, so often in a row, would go on to do so.
_SOON_SECS = 5.0
_MAX_SOON = 3
_PAUSE_SECS = 0.25
# What was printed last, for a reader that has stopped reading, after a signal.
_LAST_WORDS_SECS = 1.0


def launch(
    words: Sequence[str],
    num_processes: int,
    *,
    max_restarts: int = 0,
    hang_secs: float | None = None,
    heartbeat_secs: float | None = None,
    grace_secs: float = 30.0,
    linger_secs: float = 8.0,
    place: Place | None = None,
) -> int:
    """Start a program several times as one group, and wait until all of its processes have ended.

    Each process has a device of its own, and finds in its environment what it joins the group by.
    What they print comes out line by line behind `[0] `, the number of the process. When one fails,
    the others end too. In the main thread, SIGINT, SIGTERM and SIGHUP are passed on.

    Arguments:
      words: the program and its arguments, such as `[sys.executable, "train.py"]`.
      max_restarts: how often the group is started again after a process was lost; never after an
        error in the program (`penstock.distributed.exit_codes`).
      hang_secs: how long a process may stand still before the group ends it.
      heartbeat_secs: how long a process may be silent before the group takes it for lost.
      grace_secs: how long the processes may take to save after a signal, or to end when they have
        been asked to after a failure.
      linger_secs: how long they may take to end by themselves when one has failed.
      place: "gpu" or "cpu"; None for GPUs where there are some.

    Returns:
      0 where all ended with 0, else the exit status of the process that failed first: 137 where
      SIGKILL killed it; 1 where what they print cannot be written.

    Raises:
      ValueError: a number is too small, or there are fewer GPUs than processes.
      OSError: there is no such program, or no place for so many processes.
    """
    check_count("num_processes", num_processes, 1)
    check_count("max_restarts", max_restarts, 0)
    _check_secs("hang_secs", hang_secs)
    _check_secs("heartbeat_secs", heartbeat_secs)
    for name, secs in (("grace_secs", grace_secs), ("linger_secs", linger_secs)):
        _check_secs(name, secs, is_zero_allowed=True)
    if not words or shutil.which(words[0]) is None:
        raise FileNotFoundError(
            f"launch got the words {list(words)}, expected a program that can be run and its "
            f"arguments. Pass e.g. [sys.executable, 'train.py']."
        )
    settings = {"PENSTOCK_HANG_SECS": hang_secs, "PENSTOCK_HEARTBEAT_SECS": heartbeat_secs}
    given = {name: str(value) for name, value in settings.items() if value is not None}
    variables = [{**given, **device} for device in assign_devices(num_processes, place)]
    with ForwardedSignals() as signals, contextlib.closing(Guardian("groups")) as guardian:
        starter = _Starter(
            words=tuple(words),
            variables=variables,
            patience=Patience(grace_secs=grace_secs, linger_secs=linger_secs),
            printer=LinePrinter(),
            guardian=guardian,
            received=signals.received,
        )
        return _run(starter, max_restarts)


def _check_secs(name: str, value: float | None, *, is_zero_allowed: bool = False) -> None:
    # Comparisons that are false for nan.
    if value is None or 0 < value < math.inf or (is_zero_allowed and value == 0):
        return
    expected = "0 or more" if is_zero_allowed else "more than 0"
    raise ValueError(f"{name} got {value!r}, expected seconds, {expected}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Starter:
    """What a group is started from, as often as it takes."""

    words: Sequence[str]
    variables: Sequence[Mapping[str, str]]
    patience: Patience
    printer: LinePrinter
    guardian: Guardian
    received: deque[int]

    def run_group(self, num_restarts: int) -> Outcome:
        """Start all processes and watch them until all have ended."""
        # A new port: who was killed may still hold the old one.
        shared = make_group_variables(len(self.variables), choose_port(), num_restarts)
        children: list[ChildProcess] = []
        folder = tempfile.TemporaryDirectory(prefix="penstock-launch-")
        first_failure = Path(folder.name, "first_failure")
        shared["PENSTOCK_FIRST_FAILURE"] = str(first_failure)
        try:
            for rank, own in enumerate(self.variables):
                environment = {**os.environ, **shared, **make_process_variables(rank), **own}
                # CUDA_VISIBLE_DEVICES has said it: what is left to see is device 0.
                if "CUDA_VISIBLE_DEVICES" in own:
                    environment.pop("JAX_LOCAL_DEVICE_IDS", None)
                try:
                    children.append(ChildProcess(rank, self.words, environment, self.printer))
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    raise OSError(
                        message(
                            "launch",
                            f"no place for process {rank} of {len(self.variables)} "
                            f"({error.strerror})",
                            "descriptors, memory and process numbers for all of them",
                            "Each takes three descriptors of the launcher",
                            "Look at `ulimit -a`, or start fewer",
                        )
                    ) from error
                self.guardian.watch(child.pid for child in children)
            return supervise(children, self.printer, self.received, self.patience, first_failure)
        finally:
            # Of a group that has ended by itself, nothing.
            for child in children:
                child.kill(time.monotonic())
                child.close(time.monotonic())
            self.guardian.watch([])
            folder.cleanup()


def _run(starter: _Starter, max_restarts: int) -> int:
    """Start a group, again where that may help; return the exit status."""
    printer, received = starter.printer, starter.received
    num_restarts = num_soon = 0
    while True:
        outcome = starter.run_group(num_restarts)
        num_soon = num_soon + 1 if outcome.secs < _SOON_SECS else 0
        is_lost = outcome.signal is None and is_again(outcome.code)
        if not is_lost or num_restarts == max_restarts or num_soon == _MAX_SOON:
            break
        num_restarts += 1
        secs = _PAUSE_SECS * 2**num_soon
        printer.say(
            f"{outcome.text}. All start again in {secs:g} s: restart {num_restarts} of "
            f"{max_restarts}."
        )
        printer.pause(received, secs)
        if received:
            # Between two groups there is nobody to pass it on to.
            is_lost, outcome = False, Outcome(code=-received[0], signal=received.popleft())
            break
    text = _conclude(outcome, printer.failure, num_restarts)
    if is_lost and num_restarts < max_restarts:
        text += (
            f". Lost within {_SOON_SECS:g} s of its start {num_soon} times in a row: not started "
            f"again."
        )
    if text:
        printer.say(text)
    printer.drain(received, math.inf if outcome.signal is None else _LAST_WORDS_SECS)
    return 1 if printer.failure is not None else to_status(outcome.code)


def _conclude(outcome: Outcome, unwritten: tuple[str, OSError] | None, num_restarts: int) -> str:
    """Return the line that a person is left with: which process failed first, and how."""
    if unwritten is not None:
        name, error = unwritten
        # Nobody reads on, as after `| head`: no failure that needs a word.
        return "" if error.errno == errno.EPIPE else f"{name} cannot be written: {error.strerror}"
    text = outcome.text
    if outcome.signal is not None:
        is_expected = outcome.code in (0, -outcome.signal, 128 + outcome.signal)
        text = f"ended by {signal.Signals(outcome.signal).name}" + f"; {text}" * (not is_expected)
    elif num_restarts and text:
        text += f", after {num_restarts} restart{'s' * (num_restarts > 1)}"
    if outcome.killed:
        numbers = " and ".join(map(str, outcome.killed))
        text += f"; killed, as it did not end in time: process {numbers}"
    return text

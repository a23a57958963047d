"""Start a group of processes on this machine, and see it to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from penstock._cores import num_usable_cores
from penstock._parent_watch import Guardian
from penstock.distributed import huge_pages, secret
from penstock.distributed._child_process import TICK_SECS, ChildProcess, LinePrinter, find_error
from penstock.distributed.exit_codes import AGAIN, describe, is_again, to_status

Place = Literal["cpu", "gpu"]

# Below those that systems give to whoever connects to something: a port stays free until the
# coordinator takes it, which is seconds later.
_PORTS = range(20_000, 32_768)
_NUM_TRIES = 100
_NVIDIA_SMI_SECS = 60
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
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

    `penstock launch --help` says how, and what the arguments are, which the command has checked.

    Arguments:
      words: the program and its arguments, such as `[sys.executable, "train.py"]`.

    Returns:
      0 where all ended with 0, else the exit status of the process that failed first: 137 where
      SIGKILL killed it; 1 where what they print cannot be written.

    Raises:
      ValueError: there are fewer GPUs than processes.
      OSError: there is no such program, or no place for so many processes.
    """
    settings = {"PENSTOCK_HANG_SECS": hang_secs, "PENSTOCK_HEARTBEAT_SECS": heartbeat_secs}
    shared = {name: str(value) for name, value in settings.items() if value is not None}
    variables = [{**shared, **device} for device in assign_devices(num_processes, place)]
    with _keep_signals() as received, contextlib.closing(Guardian("groups")) as guardian:
        group = _Group(
            words=tuple(words),
            variables=variables,
            grace_secs=grace_secs,
            linger_secs=linger_secs,
            printer=LinePrinter(),
            guardian=guardian,
            received=received,
        )
        return _run(group, max_restarts)


@contextlib.contextmanager
def _keep_signals() -> Iterator[deque[int]]:
    """Yield what signals that would end this process are kept in.

    None are outside the main thread, nor what is ignored: `nohup penstock launch` outlives its
    terminal.
    """
    received: deque[int] = deque()
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, lambda number, _: received.append(number))
        # Ignored, as a careless parent may hand it down, it hides how a process ended.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            # None: of a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outcome:
    """How a group ended.

    Code and text are of the process that failed first, at `secs` from the start; `signal` ended the
    group, and who did not end in time was killed.
    """

    code: int = 0
    text: str = ""
    secs: float = 0.0
    signal: int | None = None
    killed: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    """What a group is started from, as often as it takes."""

    words: Sequence[str]
    variables: Sequence[Mapping[str, str]]
    grace_secs: float
    linger_secs: float
    printer: LinePrinter
    guardian: Guardian
    received: deque[int]

    def run(self, num_restarts: int) -> _Outcome:
        # A new port: who was killed may still hold the old one.
        shared = make_group_variables(len(self.variables), choose_port(), num_restarts)
        children: list[ChildProcess] = []
        folder = tempfile.TemporaryDirectory(prefix="penstock-launch-")
        first_failure = Path(folder.name, "first_failure")
        shared["PENSTOCK_FIRST_FAILURE"] = str(first_failure)
        try:
            for own in self.variables:
                children.append(self._start(len(children), {**shared, **own}))
                self.guardian.watch(child.pid for child in children)
            return self._supervise(children, first_failure)
        finally:
            # Of a group that has ended by itself, nothing.
            for child in children:
                child.kill()
                child.close()
            self.guardian.watch([])
            folder.cleanup()

    def _start(self, rank: int, variables: Mapping[str, str]) -> ChildProcess:
        environment = {
            **os.environ,
            "JAX_PROCESS_ID": str(rank),
            "PENSTOCK_LOCAL_RANK": str(rank),
            **variables,
        }
        # CUDA_VISIBLE_DEVICES has said it: what is left to see is device 0.
        if "CUDA_VISIBLE_DEVICES" in variables:
            environment.pop("JAX_LOCAL_DEVICE_IDS", None)
        # A Python's own workers are still needed for the checkpoint. Another program, such as a
        # shell, would often keep signals to itself, so its whole group gets them.
        program = shutil.which(self.words[0]) or self.words[0]
        is_python = os.path.basename(program).startswith("python") or is_python_script(program)
        try:
            return ChildProcess(rank, self.words, environment, self.printer, hears_alone=is_python)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise OSError(
                f"launch got no place for process {rank} of {len(self.variables)} "
                f"({error.strerror}), expected descriptors, memory and process numbers for all of "
                "them. Each takes two descriptors of the launcher. See `ulimit -a`, or start fewer."
            ) from error

    def _supervise(self, children: Sequence[ChildProcess], first_failure: Path) -> _Outcome:
        """Watch processes until all have ended: what one of them does decides about all."""
        started_at = time.monotonic()
        first: ChildProcess | None = None
        passed_on: int | None = None
        failed_at = ask_at = kill_at = math.inf
        while not all(child.is_over for child in children):
            self.printer.is_news.wait(TICK_SECS)
            self.printer.is_news.clear()
            now = time.monotonic()
            for child in children:
                child.look()
            failed = [child for child in children if child.code]
            if failed and first is None:
                first, failed_at = min(failed, key=_is_consequence), now
                # The others may end by themselves; those that save after a signal keep their grace.
                if passed_on is None:
                    ask_at = now + self.linger_secs
                    kill_at = ask_at + self.grace_secs
            if self.printer.failure is not None and passed_on is None:
                # Nobody would read what they go on to print.
                self.received.append(signal.SIGTERM)
            # A signal is passed on once; Ctrl-C after that ends everything at once.
            while self.received:
                number = self.received.popleft()
                if passed_on is None:
                    passed_on, ask_at = number, math.inf
                    kill_at = min(kill_at, now + self.grace_secs)
                    for child in children:
                        child.ask_to_end(number)
                elif number == signal.SIGINT:
                    kill_at = now
            if now >= ask_at:
                ask_at = math.inf
                for child in children:
                    child.ask_to_end(signal.SIGTERM)
                    if child.is_stopped:
                        child.kill()
            if now >= kill_at:
                for child in children:
                    child.kill()
        code, text = -(passed_on or 0), ""
        # A process that the launcher killed in the end did not fail by itself.
        if first is not None and not (first.is_killed and passed_on is not None):
            code, text = _explain(first, children, first_failure)
        return _Outcome(
            code=code,
            text=text,
            secs=min(failed_at, time.monotonic()) - started_at,
            signal=passed_on,
            killed=tuple(child.rank for child in children if child.is_killed),
        )


def _is_consequence(child: ChildProcess) -> tuple[bool, int]:
    code = child.code or 0
    # Both are what a process does when it has lost another.
    return code in (AGAIN, -signal.SIGABRT), code


def _explain(
    first: ChildProcess, children: Sequence[ChildProcess], first_failure: Path
) -> tuple[int, str]:
    """Return the code and the words for the process that failed first.

    The link tells whose failure that was: the one that ended first has often lost it.
    """
    failure = {"index": first.rank, "what": ""}
    # Without penstock nobody writes it, nor where all are killed at once.
    with contextlib.suppress(OSError, ValueError):
        failure = json.loads(os.readlink(first_failure))
    child = children[failure["index"]]
    if child.is_asked and failure["what"]:
        # It stood still, and its end says nothing.
        return first.code or 0, failure["what"]
    if not child.code:
        # Nothing that goes wrong by itself, so it is not started again.
        return 1, f"{_describe(child)} in the middle of the run, as by os._exit(0)"
    return child.code, _describe(child)


def _describe(child: ChildProcess) -> str:
    code = child.code or 0
    error = find_error(child.last_lines) if code > 0 else ""
    return f"process {child.rank} {describe(code)}" + (f" ({error})" if error else "")


def _run(group: _Group, max_restarts: int) -> int:
    """Start a group, again where that may help; return the exit status."""
    printer, received = group.printer, group.received
    num_restarts = num_soon = 0
    while True:
        outcome = group.run(num_restarts)
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
        end = time.monotonic() + secs
        while not received and time.monotonic() < end:
            time.sleep(TICK_SECS)
        if received:
            # Between two groups there is nobody to pass it on to.
            is_lost, outcome = False, _Outcome(code=-received[0], signal=received.popleft())
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


def _conclude(outcome: _Outcome, unwritten: tuple[str, OSError] | None, num_restarts: int) -> str:
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


def is_python_script(path: str | os.PathLike[str]) -> bool:
    """Say whether the first line of a file asks for a Python interpreter."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.readline(200)
        return first.startswith(b"#!") and b"python" in first
    return False


def choose_port() -> int:
    """Return a port of 127.0.0.1 that nobody has."""
    for port in [*random.Random().sample(_PORTS, _NUM_TRIES), 0]:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("launch got no free port on 127.0.0.1, expected one. Look at `ss --listening`.")


def make_group_variables(num_processes: int, port: int, num_restarts: int) -> dict[str, str]:
    """Return the variables that all processes of a group share."""
    address = f"127.0.0.1:{port}"
    variables = {
        "JAX_COORDINATOR_ADDRESS": address,
        # JAX would open the port to the whole network.
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(num_processes),
        "PENSTOCK_RESTARTS": str(num_restarts),
        # The last words of a process that is killed are not in a buffer.
        "PYTHONUNBUFFERED": "1",
        **secret.make_variables(os.environ),
        **huge_pages.find_variables(),
    }
    # numpy's and torch's threads: each process would start one for every core. XLA's own pool is
    # left as it is: programs wait in it for other processes, and a share of the cores (NPROC) made
    # two processes' steps of 20 ms no faster.
    if num_processes > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, num_usable_cores() // num_processes))
    return variables


def assign_devices(
    num_processes: int, place: Place | None, environment: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """Return the variables that give each process a device of its own; of GPUs without a place.

    On GPUs each process sees one alone, so that no library in it takes memory of another's. On CPU
    a process has one device anyway. ValueError says that there are fewer GPUs than processes.
    """
    if place == "cpu":
        return [{"JAX_PLATFORMS": "cpu"}] * num_processes
    platforms = environment.get("JAX_PLATFORMS", "")
    names_gpu = bool({"cuda", "gpu"} & set(platforms.split(",")))
    is_asked = place == "gpu" or names_gpu
    if not is_asked and (platforms or not _has_cuda_plugin()):
        return [{}] * num_processes
    gpus = find_gpus(environment)
    if not gpus and not is_asked:
        return [{}] * num_processes
    if len(gpus) < num_processes:
        expected = f"at most {len(gpus)}, the number of" if gpus else "some"
        raise ValueError(
            f"num_processes got {num_processes} on GPUs, expected {expected} GPUs in "
            f"CUDA_VISIBLE_DEVICES or `nvidia-smi -L`. Each process has one of its own. Start "
            f"{'fewer, or start ' * bool(gpus)}them with place 'cpu'."
        )
    # "cpu" too: a program may ask for the host's device by name.
    platform = {} if names_gpu or place is None else {"JAX_PLATFORMS": "cuda,cpu"}
    return [{"CUDA_VISIBLE_DEVICES": gpu, **platform} for gpu in gpus[:num_processes]]


def find_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA sees those before the first that does not exist.
        end = next((n for n, name in enumerate(names) if name in ("", "-1")), len(names))
        return [] if visible.strip() == "NoDevFiles" else names[:end]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        result = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_SECS, check=True
        )
    # A driver that does not answer has no GPUs for us.
    except (OSError, subprocess.SubprocessError):
        return []
    return read_gpu_list(result.stdout)


def read_gpu_list(text: str) -> list[str]:
    """Return the GPUs in what `nvidia-smi -L` prints; of one that is divided, its parts."""
    gpus: list[str] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+):", line):
            gpus.append(whole[1])
        elif part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            # The GPU itself, which stands above its parts, is none.
            if gpus and gpus[-1].isdigit():
                gpus.pop()
            gpus.append(part[1])
    return gpus


def _has_cuda_plugin() -> bool:
    # Looked for, not imported: JAX takes a second.
    return any(importlib.util.find_spec(f"jax_cuda{n}_plugin") is not None for n in (12, 13))

"""What runs on Ray's workers: one process of a run, and the record that all of them write to."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock._errors import PeerError, check_installed
from penstock._interrupts import request_end
from penstock.distributed import exits
from penstock.distributed.exit_codes import is_again

_PARTS = (
    *("ray.cloudpickle", "ray.train", "ray.train.collective", "ray.train.v2.jax"),
    "ray.util.scheduling_strategies",
)


def load_ray(owner: str) -> Any:
    """Return the package `ray` with Ray Train for JAX, which takes 2 s; name what is missing."""
    for package in ("ray", "pyarrow"):  # Ray alone is installed without what Ray Train needs
        check_installed(package, "ray", owner)
    for part in _PARTS:
        importlib.import_module(part)
    return importlib.import_module("ray")


# How long a worker that ends waits until the record has taken its note.
_NOTE_SECS = 10.0
# How often a worker looks whether the run is to end.
_LOOK_SECS = 1.0


class ProcessFailedError(RuntimeError):
    """A process failed in a way that would repeat itself: the run is over."""


class ProcessLostError(RuntimeError):
    """A process cannot go on, and nothing is wrong with it: the group is to start again."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """How the first process failed that did not ask for another try, as a process of its own."""

    sentence: str
    status: int
    trace: str = ""


class RunRecord:
    """What the processes of a run leave for its driver; lives in a process of its own.

    Ray restarts on any failure and knows no exit status: what it has to be told is here.
    """

    def __init__(self) -> None:
        self._num_starts = 0
        self._is_ending = False
        self._failure: Failure | None = None

    def begin(self) -> int:
        """Count a start of the group; return how many there were before."""
        self._num_starts += 1
        return self._num_starts - 1

    def request_end(self) -> bool:
        """Have all processes save and end; return whether there were any yet."""
        self._is_ending = True
        return self._num_starts > 0

    def is_ending(self) -> bool:
        """Return whether the processes are to save and end."""
        return self._is_ending

    def fail(self, failure: Failure) -> None:
        """Keep the first failure. One with a traceback says more than an exit status."""
        if self._failure is None or (failure.trace and not self._failure.trace):
            self._failure = failure

    def failure(self) -> Failure | None:
        """Return the failure that ends the run, if there is one."""
        return self._failure


@dataclasses.dataclass(frozen=True)
class _Process:
    index: int
    count: int
    record: Any

    def fail(self, what: str, status: int, trace: str = "") -> str:
        """Tell the driver how this process failed; return the sentence that says so."""
        sentence = f"process {self.index} of {self.count} {what}"
        note = self.record.fail.remote(Failure(sentence, status, trace))
        # Without the driver there is nobody to tell.
        with contextlib.suppress(Exception):
            load_ray("a run on Ray").get(note, timeout=_NOTE_SECS)
        return sentence


def work(config: Mapping[str, Any]) -> bytes:
    """Run one process's part; Ray's `JaxTrainer` calls this on each worker, in a thread.

    The config has the function, pickled, the run's `RunRecord`, and the driver's directory. What
    the function returned comes back pickled: Ray's own processes need not know its type.
    """
    ray = load_ray("a run on Ray")
    context = ray.train.get_context()
    process = _Process(context.get_world_rank(), context.get_world_size(), config["record"])
    os.environ["PENSTOCK_LOCAL_RANK"] = str(context.get_local_rank())
    # Process 0 counts, and tells the others.
    count = ray.get(process.record.begin.remote()) if process.index == 0 else None
    restarts = ray.train.collective.broadcast_from_rank_zero(count)
    os.environ["PENSTOCK_RESTARTS"] = str(restarts)
    if restarts and process.index == 0:
        exits.say(f"the group starts again with {process.count} processes, restart {restarts}")
    # Ray 2.60 counts GPUs from 0 on every worker, so that two of one machine would share the first.
    # JAX has joined the others by now, and not yet looked for devices.
    if gpus := ray.get_runtime_context().get_accelerator_ids().get("GPU", []):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    # Ray puts a worker into a folder of its own, where the paths of a command lead nowhere.
    if os.path.isdir(config["directory"]):
        os.chdir(config["directory"])
    with _noting_exits(process), _looking_for_the_end(ray, process.record):
        return _run(process, config["function"], ray.cloudpickle)


def _run(process: _Process, function: bytes, cloudpickle: Any) -> bytes:
    # Here: it imports JAX, which the record and the driver can do without.
    from penstock.distributed import this_process

    error: BaseException | None = None
    pickled = cloudpickle.dumps(None)
    try:
        this_process.initialize()
        value = cloudpickle.loads(function)()
        # The driver gets process 0's.
        pickled = cloudpickle.dumps(value) if process.index == 0 else pickled
    except BaseException as raised:
        error = raised
    # As at the end of a script.
    if isinstance(error, SystemExit) and not error.code:
        error = None
    status = this_process.end(error) or (0 if error is None else exits.code_of(error))
    if not status:
        return pickled
    if is_again(status):
        own = f"Process {process.index} asked for another try."
        raise ProcessLostError(str(error) if isinstance(error, PeerError) else own)
    # One that follows from another's failure names it, and the other has the traceback.
    has_trace = error is not None and not isinstance(error, PeerError | SystemExit)
    trace = "".join(traceback.format_exception(error)) if has_trace else ""
    what = f"ended with status {status}" if error is None else exits.describe_error(error)
    raise ProcessFailedError(process.fail(what, status, trace))


@contextlib.contextmanager
def _noting_exits(process: _Process) -> Iterator[None]:
    """Tell the driver of a status with which this process ends at once.

    What waits in a collective can only be ended so. Ray sees a death like any other, and would
    start the group again.
    """
    leave = os._exit

    def note_and_leave(status: int) -> None:
        if status and not is_again(status):
            process.fail(f"ended with status {status}", status)
        leave(status)

    os._exit = note_and_leave  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        os._exit = leave


@contextlib.contextmanager
def _looking_for_the_end(ray: Any, record: Any) -> Iterator[None]:
    """End training, as SIGTERM does elsewhere, once the record says that the run is to end.

    The function runs in a thread, where signals are not seen, and SIGTERM to Ray's process would
    end it without a save.
    """
    is_over = threading.Event()

    def look() -> None:
        # Without the driver there is no record, and Ray ends this process.
        with contextlib.suppress(ray.exceptions.RayError):
            while not is_over.wait(_LOOK_SECS):
                if ray.get(record.is_ending.remote()):
                    request_end(signal.SIGTERM)
                    return

    threading.Thread(target=look, name="penstock end", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def run_words(words: Sequence[str]) -> None:
    """Run what a command line names, as a process of its own would.

    It is a script, `-m` and a module, or a command of penstock, and its arguments.
    """
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0].endswith(".py"):
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.argv = ["penstock", *words]
        # Whoever imported it before would have `runpy` warn that it runs twice.
        sys.modules.pop("penstock.__main__", None)
        # By name: the commands are built on this package, which imports none of them.
        runpy.run_module("penstock", run_name="__main__", alter_sys=True)


def describe_losses(worker_exceptions: Mapping[int, Exception]) -> str:
    """Return what became of the processes that Ray starts again.

    >>> describe_losses({1: RuntimeError("The actor died unexpectedly")})
    'Process 1 died.'
    """
    # What lost another says which; what died says nothing.
    losses = [
        str(error) for error in worker_exceptions.values() if isinstance(error, ProcessLostError)
    ]
    died = [f"Process {rank} died." for rank in sorted(worker_exceptions)]
    return " ".join(losses[:1] or died)


def quieten_cleaner() -> None:
    """Leave out what Ray's cleaner would say each second where there is no dashboard to ask."""
    logging.getLogger(
        "ray.train.v2._internal.execution.controller.placement_group_cleaner"
    ).setLevel(logging.ERROR)


def make_callback(record: Any) -> Any:
    """Return what has Ray's controller stop, and not start again, once the record has a failure."""
    ray = load_ray("a run on Ray")

    class EndAtFailures(ray.train.UserCallback):
        def after_exception(
            self, run_context: object, worker_exceptions: Mapping[int, Exception]
        ) -> None:
            failure = ray.get(record.failure.remote())
            # Ray asks its `FailureConfig` of a worker's error alone, and ends a run at this one.
            if failure is not None:
                raise ray.train.ControllerError(ProcessFailedError(failure.sentence))
            exits.say(describe_losses(worker_exceptions))

    return EndAtFailures()

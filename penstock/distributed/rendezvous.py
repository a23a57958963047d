"""The rendezvous: processes wait for each other at the coordinator's address before JAX is called.

JAX ends a process by SIGABRT, without a word that helps, where another one comes too late, has
another idea of how many there are, or listens elsewhere. So they meet first: process 0 listens at
the address, the others call and say who they are, and when all are there, each is told to go on.
Who is missing is named while the others wait, and at the end.

A call is a line of JSON, and so is the answer. Of a run with a secret it has a proof of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import time
from dataclasses import dataclass, field

from penstock._errors import message
from penstock.distributed import listening
from penstock.distributed.launchers import Membership
from penstock.distributed.secret import is_proof, prove

_LOGGER = logging.getLogger("penstock")
_PROTOCOL = "penstock 1"
_MOST_BYTES, _MOST_WAITING = 4096, 4096
# How often who waits says so.
_REPORT_SECS = 30.0
_RETRY_SECS = 0.2
# How often process 0 looks for callers that say nothing.
_LOOK_SECS = 1.0
# A connection that was accepted and says nothing, or does not end, holds nobody up for longer.
_GOODBYE_SECS = 5.0
# How long something else may answer at the address.
_STRANGER_SECS = 60.0
_MOST_NAMED = 8
_MORE_TIME = "Give more time by initialization_secs or PENSTOCK_INITIALIZATION_SECS"


class RefusedError(ConnectionError):
    """Process 0 does not take this process for one of its run."""


def meet(
    member: Membership, bind_address: tuple[str, int], timeout_secs: float, secret: str = ""
) -> None:
    """Return when all processes are there.

    Arguments:
      member: this process.
      bind_address: host and port where process 0 listens; an empty host is all of its addresses.
      timeout_secs: how long to wait.
      secret: what every process of the run knows, and nobody else.

    Raises:
      TimeoutError: some did not come; process 0 names them to all that did.
      RefusedError: another run listens there, or this process does not fit the others.
      OSError: process 0 cannot listen.
    """
    deadline = time.monotonic() + timeout_secs
    if member.process_id == 0:
        with _listen(member, bind_address) as listener:
            _Gathering(member, listener, secret).wait(deadline, timeout_secs)
    else:
        _call(member, secret, deadline, timeout_secs)


def _listen(member: Membership, bind_address: tuple[str, int]) -> socket.socket:
    host, port = bind_address
    try:
        # As JAX will.
        return listening.listen(host, port, _MOST_WAITING)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(
            message(
                "process 0",
                f"no port {port} to listen at ({reason})",
                f"a free one on {host or socket.gethostname()}",
                f"{member.launcher} leads to {member.address}, where the others look for it",
                "End what listens there, perhaps an earlier run, or set another port for all: "
                "JAX_COORDINATOR_PORT where a launcher chose it, else JAX_COORDINATOR_ADDRESS",
            )
        ) from error


@dataclass(eq=False)
class _Caller:
    """Another process on the line."""

    line: socket.socket
    said: bytes = b""
    process_id: int | None = None


@dataclass
class _Gathering:
    """Process 0 and those that have called."""

    member: Membership
    listener: socket.socket
    secret: str
    present: dict[int, _Caller] = field(default_factory=dict)
    refusal: str = ""

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.strangers = listening.Strangers[_Caller](self._drop)

    def wait(self, deadline: float, timeout_secs: float) -> None:
        """Wait for the others, and tell each to go on, or why not.

        Raises:
          TimeoutError: some did not come.
        """
        listening.raise_descriptor_limit(self.member.num_processes)
        with self.selector as selector:
            self.listener.setblocking(False)
            selector.register(self.listener, selectors.EVENT_READ)
            report_at = time.monotonic() + _REPORT_SECS
            try:
                while len(self.present) < self.member.num_processes - 1:
                    now = time.monotonic()
                    if now >= deadline:
                        raise TimeoutError(self._describe_timeout(timeout_secs))
                    if now >= report_at:
                        report_at += _REPORT_SECS
                        _LOGGER.warning("at %s, %s", self.member.address, self._name_missing())
                    self.strangers.drop_silent()
                    self._take_calls(min(deadline, report_at, now + _LOOK_SECS))
            except BaseException as error:
                is_late = isinstance(error, TimeoutError)
                ended = f"process 0 on {socket.gethostname()} ended: {type(error).__name__} {error}"
                reason = str(error) if is_late else ended.rstrip()
                self._answer_all({"error": reason, "is_final": True, "is_late": is_late})
                raise
            else:
                # First, so that what listens there afterwards is JAX.
                self.listener.close()
                self._answer_all({})
            finally:
                for key in selector.get_map().values():
                    if key.data is not None:
                        key.data.line.close()

    def _name_missing(self) -> str:
        return _waiting_for(
            [i for i in range(1, self.member.num_processes) if i not in self.present]
        )

    def _take_calls(self, until: float) -> None:
        for key, _ in self.selector.select(max(0.0, until - time.monotonic())):
            if key.data is None:
                self._accept()
            # Another that called in the same moment may have had it dropped.
            elif key.data.line.fileno() >= 0:
                self._hear(key.data)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self.listener.accept()
            line.setblocking(False)
            caller = _Caller(line)
            self.selector.register(line, selectors.EVENT_READ, caller)
            self.strangers.add(caller, self.member.num_processes - 1 - len(self.present))

    def _drop(self, caller: _Caller) -> None:
        self.strangers.discard(caller)
        self.selector.unregister(caller.line)
        caller.line.close()

    def _hear(self, caller: _Caller) -> None:
        try:
            heard = caller.line.recv(_MOST_BYTES)
        except OSError:
            heard = b""
        caller.said += heard
        is_over = not heard or len(caller.said) > _MOST_BYTES
        # Who has said who it is only waits. When it goes away, it may have been started again.
        if is_over and caller.process_id is not None:
            del self.present[caller.process_id]
        elif not is_over and caller.process_id is None and b"\n" in caller.said:
            is_over = not self._register(caller)
        if is_over:
            self._drop(caller)

    def _register(self, caller: _Caller) -> bool:
        """Take a caller for one of the run, or tell it why not; return which."""
        try:
            call = _read(caller.said)
        except ValueError:  # somebody looks which ports are open
            return False
        reason = _find_misfit(self.member, self.secret, call)
        number = call.get("process_id")
        if not reason and number in self.present:
            reason = f"there is a process {number} already"
        if reason or not isinstance(number, int):
            self.refusal = f"process {number} on {call.get('host')} was sent away: {reason}"
            _LOGGER.warning("at %s, %s", self.member.address, self.refusal)
            _send(caller.line, {"error": reason, "host": socket.gethostname()})
            return False
        caller.process_id = number
        self.strangers.discard(caller)
        self.present[number] = caller
        return True

    def _answer_all(self, answer: dict[str, object]) -> None:
        """Tell all that are there, and wait until they have ended the call."""
        ends_at = time.monotonic() + _GOODBYE_SECS
        for caller in self.present.values():
            caller.line.settimeout(_GOODBYE_SECS)
            _send(caller.line, answer)
        for caller in self.present.values():
            # The side that ends a call first keeps its port for a minute. That must not be the
            # coordinator's.
            with contextlib.suppress(OSError):
                caller.line.settimeout(max(0.001, ends_at - time.monotonic()))
                caller.line.recv(1)
            caller.line.close()

    def _describe_timeout(self, timeout_secs: float) -> str:
        member, name = self.member, socket.gethostname()
        here = 1 + len(self.present)
        away = "" if listening.is_own_address(member.host or "") else ", which is no address of it,"
        who = self._name_missing()
        return message(
            f"process 0 on {name} at {member.address}{away}",
            f"{here} of {member.num_processes} processes within {timeout_secs:g} s",
            "all of them",
            f"{who[0].upper()}{who[1:]}{'; ' if self.refusal else ''}{self.refusal}",
            f"See in their logs why, and whether they look for {member.address}. {_MORE_TIME}",
        )


def _call(member: Membership, secret: str, deadline: float, timeout_secs: float) -> None:
    """Call process 0 until it answers."""
    now = time.monotonic()
    report_at, give_up_at, failure = now + _REPORT_SECS, now + _STRANGER_SECS, "nothing"
    while (now := time.monotonic()) < deadline:
        try:
            answer = _ask(member, secret, deadline)
        except (OSError, UnicodeError) as error:
            answer, failure = None, getattr(error, "strerror", None) or str(error)
        except ValueError:
            # A process 0 that this run had before it was started again may still be ending.
            answer, failure = None, "something else answers there, perhaps a run that has begun"
            if now >= give_up_at:
                break
        if answer is not None:
            _check_answer(member, answer)
            _wait_for_service(member)
            return
        if now >= report_at:
            report_at += _REPORT_SECS
            _LOGGER.warning("waiting for process 0 at %s: %s", member.address, failure)
        time.sleep(_RETRY_SECS)
    raise TimeoutError(
        message(
            f"process {member.process_id} of {member.num_processes}",
            f"no answer from process 0 at {member.address} within {timeout_secs:g} s ({failure})",
            "it to listen there",
            f"{member.launcher} leads to this address",
            "See in the log of process 0 whether it came so far, and whether this machine reaches "
            f"the address; JAX_COORDINATOR_ADDRESS=HOST:PORT sets another for all. {_MORE_TIME}",
        )
    )


def _ask(member: Membership, secret: str, deadline: float) -> dict[str, object] | None:
    """Say who this is and wait for the answer; None where process 0 goes away before.

    Raises:
      OSError: nobody listens there, or nobody answers in time.
      ValueError: somebody who is no process 0.
    """
    until = max(0.001, deadline - time.monotonic())
    with socket.create_connection(_address(member), timeout=min(until, _GOODBYE_SECS)) as line:
        line.settimeout(until)
        # A machine that is switched off ends no call: the system asks after it.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        call = {
            "protocol": _PROTOCOL,
            "process_id": member.process_id,
            "num_processes": member.num_processes,
            "run": member.run,
            "host": socket.gethostname(),
        }
        call["proof"] = prove(secret, _describe_place(call))
        _send(line, call)
        said = b""
        while b"\n" not in said:
            heard = line.recv(_MOST_BYTES)
            if not heard:
                return None
            said += heard
            if said[:1] != b"{":
                raise ValueError(f"{member.address} answers with {said[:20]!r}")
    return _read(said)


def _wait_for_service(member: Membership) -> None:
    """Wait until process 0 listens again, now for JAX, which tries only once a second."""
    deadline = time.monotonic() + _GOODBYE_SECS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(_address(member), timeout=1):
            return
        time.sleep(0.005)


def _address(member: Membership) -> tuple[str, int]:
    return member.host or "", member.port or 0


def _check_answer(member: Membership, answer: dict[str, object]) -> None:
    reason = answer.get("error")
    if reason is None:
        return
    if answer.get("is_final"):
        raise (TimeoutError if answer.get("is_late") else ConnectionError)(str(reason))
    raise RefusedError(
        message(
            f"process {member.process_id} of {member.num_processes}",
            f"no place at {member.address} (process 0 on {answer.get('host')} says: {reason})",
            "one among the others",
            f"{member.launcher} has not told both the same, or that is another run",
            "Start all processes alike, and runs that share a machine with ports of their own",
        )
    )


def _describe_place(call: dict[str, object]) -> str:
    """Return what a caller proves that it may be."""
    return f"process {call.get('process_id')} of {call.get('num_processes')} of {call.get('run')}"


def _find_misfit(member: Membership, secret: str, call: dict[str, object]) -> str:
    """Return why a caller is none of this run; nothing where it is."""
    number, count = call.get("process_id"), call.get("num_processes")
    if call.get("protocol") != _PROTOCOL:
        return f"it speaks {call.get('protocol')}, process 0 speaks {_PROTOCOL}"
    if call.get("run") != member.run:
        return f"it is of the run {call.get('run')!r}, process 0 of {member.run!r}"
    if count != member.num_processes:
        return f"it is one of {count} processes, process 0 one of {member.num_processes}"
    if type(number) is not int or not 0 < number < member.num_processes:
        return f"there is no place for a process {number} among {member.num_processes}"
    if not is_proof(call.get("proof"), secret, _describe_place(call)):
        return "its secret (PENSTOCK_SECRET, PENSTOCK_SECRET_FILE) is not that of process 0"
    return ""


def _waiting_for(missing: list[int]) -> str:
    """Return who is missing, for a person.

    >>> _waiting_for([1]), _waiting_for([2, 3])
    ('process 1 has not come yet', 'processes 2, 3 have not come yet')
    """
    if len(missing) == 1:
        return f"process {missing[0]} has not come yet"
    rest = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"processes {', '.join(map(str, missing[:_MOST_NAMED]))}{rest} have not come yet"


def _send(line: socket.socket, what: dict[str, object]) -> None:
    # Who has gone away in the meantime is noticed when the answer is awaited.
    with contextlib.suppress(OSError):
        line.sendall(json.dumps(what).encode() + b"\n")


def _read(said: bytes) -> dict[str, object]:
    """Return what a line says.

    Raises:
      ValueError: it is none of ours.
    """
    try:
        what = json.loads(said.partition(b"\n")[0])
    except RecursionError as error:
        raise ValueError("expected a dict, got brackets") from error
    if not isinstance(what, dict):
        raise ValueError(f"expected a dict, got {what!r}")
    return what

"""The rendezvous: processes wait for each other at the coordinator's address before JAX is called.

JAX ends a process by SIGABRT, without a word that helps, where another one comes too late, has
another idea of how many there are, or listens elsewhere. So they meet first: process 0 listens at
the address, the others call and say who they are, and when all are there, each is told to go on.
Who is missing is named while the others wait, and at the end.

A call is a line of JSON, and so is the answer. Of a run with a secret it has a proof of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time

from penstock._errors import listed
from penstock.distributed import listening
from penstock.distributed.environments import Membership
from penstock.distributed.listening import Callers, Connection, LineBuffer, encode
from penstock.distributed.meeting_rules import Message
from penstock.distributed.secret import is_proof, prove

_LOGGER = logging.getLogger("penstock")
_PROTOCOL = "penstock 1"
_MOST_WAITING = 4096
_MOST_HEARD = 1 << 16
# How often who waits says so.
_REPORT_SECS = 30.0
_RETRY_SECS = 0.2
# A connection that was accepted and says nothing, or does not end, holds nobody up for longer.
_GOODBYE_SECS = 5.0
# How long nothing but something else may answer at the address.
_STRANGER_SECS = 60.0
_MOST_NAMED, _MOST_SHOWN = 8, 300
_MORE_TIME = "Give more time by initialization_secs or PENSTOCK_INITIALIZATION_SECS"


class RefusedError(ConnectionError):
    """Process 0 does not take this process for one of its run."""


def meet(
    member: Membership, bind_address: tuple[str, int], timeout_secs: float, secret: str = ""
) -> None:
    """Return when all processes are there; process 0 listens, at all of its addresses without a
    host.

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
            f"process 0 got no port {port} to listen at ({reason}), expected a free one on "
            f"{host or socket.gethostname()}. {member.launcher} leads to {member.address}, where "
            "the others look for it. End what listens there, perhaps an earlier run, or set "
            "another port for all: JAX_COORDINATOR_PORT where a launcher chose it, else "
            "JAX_COORDINATOR_ADDRESS."
        ) from error


class _Gathering:
    """Process 0 and those that have called."""

    def __init__(self, member: Membership, listener: socket.socket, secret: str) -> None:
        self._member, self._secret, self._refusal = member, secret, ""
        self._callers = Callers(listener, member.num_processes - 1, self._hear, lambda gone: None)

    def wait(self, deadline: float, timeout_secs: float) -> None:
        """Wait for the others, and tell each to go on, or why not."""
        report_at = time.monotonic() + _REPORT_SECS
        try:
            while self._find_missing():
                now = time.monotonic()
                if now >= deadline:
                    raise TimeoutError(self._describe_timeout(timeout_secs))
                if now >= report_at:
                    report_at += _REPORT_SECS
                    _LOGGER.warning("at %s, %s", self._member.address, self._name_missing())
                until = min(deadline, report_at, now + listening.TICK_SECS)
                self._callers.work(max(0.0, until - now))
        except BaseException as error:
            is_late = isinstance(error, TimeoutError)
            ended = f"process 0 on {socket.gethostname()} ended: {type(error).__name__} {error}"
            reason = str(error) if is_late else ended.rstrip()
            self._answer_all({"error": reason, "is_final": True, "is_late": is_late})
            raise
        else:
            # First, so that what listens there afterwards is JAX.
            self._callers.listener.close()
            self._answer_all({})
        finally:
            self._callers.close()

    def _find_missing(self) -> list[int]:
        there = self._callers.by_index
        return [index for index in range(1, self._member.num_processes) if index not in there]

    def _name_missing(self) -> str:
        missing = self._find_missing()
        if len(missing) == 1:
            return f"process {missing[0]} has not come yet"
        return f"processes {listed(missing, _MOST_NAMED)} have not come yet"

    def _hear(self, caller: Connection, call: Message) -> None:
        """Take a caller for one of the run, or tell it why not."""
        # Who has said who it is only waits. When it goes away, it may have been started again.
        if caller.index is not None:
            return
        reason = _find_misfit(self._member, self._secret, call)
        index = call.get("process_id")
        if not reason and index in self._callers.by_index:
            reason = f"there is a process {index} already"
        if not reason and isinstance(index, int):
            self._callers.admit(caller, index)
            return
        refusal = f"process {index} on {call.get('host')} was sent away: {reason}"
        # A stranger's words: no line of a log, or order to a terminal, is theirs to write.
        self._refusal = refusal.encode("unicode_escape").decode()[:_MOST_SHOWN]
        _LOGGER.warning("at %s, %s", self._member.address, self._refusal)
        _send(caller.peer, {"error": reason, "host": socket.gethostname()})
        self._callers.drop(caller)

    def _answer_all(self, answer: Message) -> None:
        """Tell all that are there, and wait until they have ended the call."""
        ends_at = time.monotonic() + _GOODBYE_SECS
        callers = self._callers.by_index.values()
        for caller in callers:
            caller.peer.settimeout(_GOODBYE_SECS)
            _send(caller.peer, answer)
        for caller in callers:
            # The side that ends a call first keeps its port for a minute. That must not be the
            # coordinator's.
            with contextlib.suppress(OSError):
                caller.peer.settimeout(max(0.001, ends_at - time.monotonic()))
                caller.peer.recv(1)

    def _describe_timeout(self, timeout_secs: float) -> str:
        member, name = self._member, socket.gethostname()
        away = "" if listening.is_own_address(member.host or "") else ", which is no address of it,"
        who = self._name_missing()
        return (
            f"process 0 on {name} at {member.address}{away} got {1 + len(self._callers.by_index)} "
            f"of {member.num_processes} processes within {timeout_secs:g} s, expected all of them. "
            f"{who[0].upper()}{who[1:]}{'; ' if self._refusal else ''}{self._refusal}. See in "
            f"their logs why, and whether they look for {member.address}. {_MORE_TIME}."
        )


def _call(member: Membership, secret: str, deadline: float, timeout_secs: float) -> None:
    began_at = time.monotonic()
    report_at, give_up_at, failure = began_at + _REPORT_SECS, deadline, "nothing"
    while (now := time.monotonic()) < give_up_at:
        try:
            answer = _ask(member, secret, deadline)
        except (OSError, UnicodeError) as error:
            answer, failure = None, getattr(error, "strerror", None) or str(error)
            give_up_at = deadline
        except ValueError:
            # A process 0 that this run had before it was started again may still be ending.
            answer, failure = None, "something else answers there, perhaps a run that has begun"
            give_up_at = min(give_up_at, now + _STRANGER_SECS)
        if answer is not None:
            _check_answer(member, answer)
            _wait_for_service(member)
            return
        if now >= report_at:
            report_at += _REPORT_SECS
            _LOGGER.warning("waiting for process 0 at %s: %s", member.address, failure)
        time.sleep(_RETRY_SECS)
    secs = round(min(now - began_at, timeout_secs), 1)
    raise TimeoutError(
        f"process {member.process_id} of {member.num_processes} got no answer from process 0 at "
        f"{member.address} within {secs:g} s ({failure}), expected it to listen there. "
        f"{member.launcher} leads to this address. See in the log of process 0 whether it came so "
        "far, and whether this machine reaches the address; JAX_COORDINATOR_ADDRESS=HOST:PORT "
        f"sets another for all. {_MORE_TIME}."
    )


def _ask(member: Membership, secret: str, deadline: float) -> Message | None:
    """Say who this is; return the answer, None where process 0 goes away before."""
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
        lines = LineBuffer()
        while heard := line.recv(4096):
            # JAX's service, or a server of something else: no answer is as long.
            if lines.num_bytes > _MOST_HEARD or (not lines.num_bytes and heard[:1] != b"{"):
                raise ValueError(f"{member.address} answers with {heard[:20]!r}")
            for answer in lines.take(heard):
                return answer
    return None


def _wait_for_service(member: Membership) -> None:
    """Wait until process 0 listens again, now for JAX, which tries only once a second."""
    deadline = time.monotonic() + _GOODBYE_SECS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(_address(member), timeout=1):
            return
        time.sleep(0.005)


def _address(member: Membership) -> tuple[str, int]:
    return member.host or "", member.port or 0


def _check_answer(member: Membership, answer: Message) -> None:
    reason = answer.get("error")
    if reason is None:
        return
    if answer.get("is_final"):
        raise (TimeoutError if answer.get("is_late") else ConnectionError)(str(reason))
    raise RefusedError(
        f"process {member.process_id} of {member.num_processes} got no place at {member.address} "
        f"(process 0 on {answer.get('host')} says: {reason}), expected one among the others. "
        f"{member.launcher} has not told both the same, or that is another run. Start all "
        "processes alike, and runs that share a machine with ports of their own."
    )


def _describe_place(call: Message) -> str:
    return f"process {call.get('process_id')} of {call.get('num_processes')} of {call.get('run')}"


def _find_misfit(member: Membership, secret: str, call: Message) -> str:
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


def _send(line: socket.socket, what: Message) -> None:
    # Who has gone away in the meantime is noticed when the answer is awaited.
    with contextlib.suppress(OSError):
        line.sendall(encode(what))

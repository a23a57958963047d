"""One of several processes: what it agrees on with the others, and how it ends with them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

from penstock._errors import PeerError
from penstock.distributed import exits
from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.group import Group
from penstock.distributed.hub import Hub
from penstock.distributed.listening import LineBuffer, encode, receive
from penstock.distributed.meeting_rules import Message
from penstock.distributed.secret import prove
from penstock.distributed.waiting_times import CONNECT_SECS

LINGER_SECS = 8.0
"""How long a process that has failed waits for the others to end, or to fail alike."""

GRACE_SECS, GRACE_OF_A_LOSS_SECS = 3.0, 1.0
"""How long a process may take to end by itself when another has failed."""

# How often is looked for something to tell; while all come to a stand, who stands behind another
# must know.
_TICK_SECS, _EAGER_SECS = 0.1, 0.02


class Member(Group):
    """A process with a connection to the hub, which it closes on process 0.

    `token` lets it in, and either may be silent for `heartbeat_secs`.
    """

    def __init__(
        self,
        index: int,
        count: int,
        address: tuple[str, int],
        token: str,
        *,
        heartbeat_secs: float,
        hub: Hub | None = None,
    ) -> None:
        super().__init__()
        self.index, self.count, self._hub = index, count, hub
        self._step = self._progress = 0
        self._calls: list[str] = []  # those that this process is in, from the outside in
        self._num_calls, self._own_code = 0, 0
        self._is_leaving = self._is_agreed = False
        # Those that this process was told of, the first one first. One with `until` happened in the
        # call of that number; one with `since` ended a process that had made the calls before it,
        # with `is_good_end` its script; one with `is_final` ends all, wherever they are.
        self._failures: list[Message] = []
        self._origin: Message | None = None  # the failure that this process ends by
        self._first_word = threading.Lock()  # held for ever, by the thread that comes first
        self._condition = threading.Condition()
        self._asked, self._target, self._told_position = "", 0, 0
        self._answer: Message | None = None
        self._over: Message | None = None
        self._heartbeat_secs, self._sending, self._is_over = heartbeat_secs, threading.Lock(), False
        self._peer = socket.create_connection(address, timeout=CONNECT_SECS)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer.settimeout(None)
        # A machine that is switched off takes nothing, and refuses nothing: the sender, and behind
        # it the beats of the thread, would wait for a quarter of an hour.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(min(2000 * heartbeat_secs, (1 << 31) - 1))
            self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        where = f"{socket.gethostname()}, pid {os.getpid()}"
        proof = prove(token, f"process {index}")
        self._send({"kind": "hello", "index": index, "proof": proof, "where": where})
        self._thread = threading.Thread(target=self._listen, name="penstock group", daemon=True)
        self._thread.start()

    # What the main thread calls.

    def advance(self, step: int | None = None) -> None:
        """Note a launch, or another place where all may meet; see `Group.advance`."""
        self.position += 1
        if step is not None:
            self._step = step

    def meet(self) -> bool:
        """Stand until all processes stand at this position; see `Group.meet`."""
        # Another is further on, and may be in a launch that waits for this process.
        if self.position < self._target:
            return False
        answer = self._ask({"kind": "stopped"})
        if answer["kind"] == "run_to":
            self._target = answer["position"]
            return False
        self.is_asked = False
        return answer["kind"] == "met"

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Be in a call that all processes make; see `Group.inside`."""
        if not self._calls:
            self._num_calls += 1
            self._is_leaving, self._own_code, self._origin = False, 0, None
            self._is_agreed = False
            exits.note_last(None)  # what ended the call before was caught
        self._calls.append(name)
        try:
            # Not of what failed in this same call: it may fail here in the same way.
            if self.find_failure(is_entering=True) is not None:
                raise self._peer_error()
            yield
        except BaseException as error:
            first = self.note_failure(error)
            if first is error:
                raise
            raise first from error
        finally:
            self._calls.pop()

    def note_failure(self, error: BaseException) -> BaseException:
        """Tell the others that this process cannot go on; see `Group.note_failure`."""
        if self._is_leaving:
            return error
        if exits.may_follow_from_a_loss(error):
            # The connection of the devices broke: the hub knows whose end that was.
            with self._condition:
                self._condition.wait_for(lambda: self.find_failure() is not None, GRACE_SECS)
            if self.find_failure() is not None:
                error = self._peer_error()
        self._is_leaving = True
        what = f"process {self.index} {exits.describe_error(error)}"
        # Here, where it is known which calls this process is in.
        self._origin = self._trace(what)
        if isinstance(error, SystemExit):
            exits.note_last(error)
        if isinstance(error, PeerError):
            return error
        self._own_code = exits.code_of(error)
        # Whoever leaves this call with an exception too may catch it, and go on as this one may.
        message = {"kind": "failed", "what": what, "code": self._own_code, "until": self._num_calls}
        self._send(message)
        return error

    def leave(self, index: int) -> None:
        """Note that an exception is raised now that all have agreed on; see `Group.leave`."""
        self._is_leaving = self._is_agreed = True
        self._origin = {"index": index, "what": f"process {index} ended all"}

    def end(self, error: BaseException | None) -> int | None:
        """Wait until the scripts of all processes are over; return the exit code to end with.

        None is for an end as Python has it. Called at exit, before JAX's own barrier, where a
        process would wait five minutes for one that has failed.
        """
        # By the signal that all agreed on each ends in its own time.
        if self._is_agreed and isinstance(error, SystemExit):
            error = None
        what = "" if error is None else exits.describe_error(error)
        code = 0 if error is None else exits.code_of(error)
        if code:
            exits.ignore_sigterm()
            # Now: the others are about to fail in their turn.
            self._origin = self._origin or self._trace(f"process {self.index} {what}")
        self._send({"kind": "ended", "what": what, "code": code})
        with self._condition:
            # One that has failed waits a little, for those that may have failed alike.
            secs = None if not code else LINGER_SECS
            self._condition.wait_for(lambda: self._over is not None or self.find_failure(), secs)
        if self._over is not None and not self._over["code"]:
            # All may end together by a signal that one of them got: `leave` says which.
            exits.report_first(self._origin if self._is_agreed else None)
            self.hang_up(GRACE_SECS)
            return None
        exits.ignore_sigterm()
        failure = self.find_failure() or self._over
        if isinstance(error, PeerError) and not error.is_of_this_call:
            self._say_once(str(error))
        if failure is not None and not code:
            self._say_once(self._describe(failure))
            code = failure["code"]
        exits.report_first(self._origin or failure)
        self.hang_up(LINGER_SECS, failure)
        return code or 1

    def hang_up(self, linger_secs: float = 0.0, failure: Message | None = None) -> None:
        """Leave the hub, which takes this process for lost unless its script was over."""
        # Process 0 last: the others' connections end with it.
        if self._hub is not None:
            self._hub.linger(linger_secs, failure)
        self._is_over = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._peer.close()
        if self._hub is not None:
            self._hub.close()

    def find_failure(self, *, is_entering: bool = False) -> Message | None:
        """Return the first failure elsewhere that leaves this process without partners.

        A failure in the call that it enters counts less: it may come here in the same way, and be
        caught by all.
        """
        # Between two calls: past the one, and not yet in the other.
        number = self._num_calls + (0.0 if self._calls else 0.5)
        for failure in self._failures:
            is_stuck = number <= failure.get("until", -1) - is_entering
            is_stuck = is_stuck or number >= failure.get("since", number + 1)
            if is_stuck or failure.get("is_final"):
                return failure
        return None

    def _describe(self, failure: Message) -> str:
        """Return a failure as a sentence, and what to do."""
        step = f"global step {failure['step']}" if failure.get("step") else ""
        facts = ", ".join(fact for fact in (failure.get("where"), step) if fact)
        advice = failure.get("advice", f"Process {self.index} cannot go on without it")
        # Of a script that an exception ended the calls are as they should be.
        if failure.get("is_good_end") and self._calls:
            advice = f"Call {self._calls[-1]} on every process, or on none"
        return f"{failure.get('what')}{f' ({facts})' if facts else ''}. {advice}."

    def _enter(self, name: str, way: str, text: str) -> Message:
        return self._ask({"kind": "exchange", "name": name, "way": way, "text": text})

    def _say_once(self, sentence: str) -> None:
        if self._first_word.acquire(blocking=False):
            exits.say(sentence)

    def _trace(self, what: str) -> Message:
        """Return the failure that one of this process follows from; its own is described."""
        failure = self.find_failure()
        # Of two of which one has ended its script, the one that waits made the wrong call.
        if failure is None or failure.get("is_good_end"):
            return {"index": self.index, "what": what}
        return failure

    def _ask(self, message: Message) -> Message:
        with self._condition:
            if self.find_failure() is not None:
                raise self._peer_error()
            self._answer, self._asked = None, message["kind"]
        self._send(message)
        try:
            with self._condition:
                self._condition.wait_for(lambda: self._answer is not None or self.find_failure())
                if self._answer is None:
                    raise self._peer_error()
                self._progress += 1
                return self._answer
        except BaseException:
            self._send({"kind": "left"})  # it waits no longer, and others need not wait for that
            raise

    def _peer_error(self) -> PeerError:
        failure = self.find_failure() or {}
        error = PeerError(self._describe(failure))
        # Who has failed by an error of its own is not to be started again, whatever came after.
        error.exit_code = self._own_code or failure.get("code", 1)
        error.is_of_this_call = "advice" in failure or bool(failure.get("is_good_end"))
        return error

    def _send(self, message: Message) -> None:
        self._told_position = position = self.position
        data = encode(
            {
                **message,
                "position": position,
                "step": self._step,
                "activity": self.describe(),
                "num_calls": self._num_calls,
                "progress": position + self._progress,
                "is_at_work": bool(self._calls),
                "is_compiling": self.num_compiling > 0,
            }
        )
        # That the hub is gone is found out by the thread.
        with contextlib.suppress(OSError), self._sending:
            self._peer.sendall(data)

    # What the listening thread calls.

    def _listen(self) -> None:
        what = self._hear_until_lost()
        if not self._is_over:
            self._lose_hub(what)

    def _hear_until_lost(self) -> str:
        """Hear and beat as long as the hub is there; return what became of it."""
        lines, heard_at, beat_at = LineBuffer(), time.monotonic(), 0.0
        beat_secs = min(1.0, self._heartbeat_secs / 4)
        # Not `select`, which takes no descriptor above 1023: a reader may hold many files open.
        poll = select.poll()
        poll.register(self._peer, select.POLLIN)
        while True:
            now, is_eager = time.monotonic(), self._tick()
            if now - beat_at >= beat_secs:
                beat_at = now
                self._send({"kind": "beat"})
            if poll.poll(1000 * (_EAGER_SECS if is_eager else _TICK_SECS)):
                piece = receive(self._peer)
                if not piece:
                    return "was lost: it was killed, called os._exit, or its machine is gone"
                heard_at = time.monotonic()
                for message in lines.take(piece):
                    self._hear(message)
            elif time.monotonic() - now > self._heartbeat_secs / 2:
                heard_at = time.monotonic()  # this process itself stood still
            elif time.monotonic() - heard_at > self._heartbeat_secs:
                return f"has not answered for {self._heartbeat_secs:.0f} s"

    def _tick(self) -> bool:
        if not self.is_asked and self.wants():
            self.is_asked = True
            self._send({"kind": "ask"})
        # In no call nothing of what it says changes, perhaps for hours.
        is_eager = bool(self._calls) and self.is_asked
        if is_eager and self.position != self._told_position:
            self._send({"kind": "beat"})
        return is_eager

    def _hear(self, message: Message) -> None:
        match message["kind"]:
            case "beat":
                return
            case "meet":
                self.is_asked = True
                self._send({"kind": "beat"})
            case "dump":
                exits.dump_stacks(f"process {self.index}: one does not answer or move; all stacks:")
            case "over":
                with self._condition:
                    self._over = message
                    self._condition.notify_all()
            case "failure":
                if message["index"] != self.index or message.get("is_final"):
                    self._fail(message)
            case kind:
                # Who waits in an exchange hears of a meeting put off too, and waits on.
                is_put_off = kind == "postponed"
                self.is_asked = self.is_asked and not is_put_off
                if not is_put_off or self._asked == "stopped":
                    with self._condition:
                        self._answer = message
                        self._condition.notify_all()

    def _lose_hub(self, what: str) -> None:
        if self._over is None:
            failure = {"index": 0, "what": f"process 0 {what}", "code": AGAIN, "is_final": True}
            self._failures.append({"kind": "failure", "step": self._step, **failure})
            # At once: JAX hears of it too, and aborts this process without a word of Python.
            self._end_if_stuck(0.0)
            with self._condition:
                self._condition.notify_all()

    def _fail(self, failure: Message) -> None:
        with self._condition:
            self._failures.append(failure)
            self._condition.notify_all()
        # Whoever is lost did not fail as others may have: nobody ends by itself.
        grace_secs = GRACE_OF_A_LOSS_SECS if failure["code"] == AGAIN else GRACE_SECS
        threading.Thread(target=self._end_if_stuck, args=(grace_secs,), daemon=True).start()

    def _end_if_stuck(self, grace_secs: float) -> None:
        """End this process where its main thread waits for one that will not come."""
        time.sleep(grace_secs)
        failure = self.find_failure()
        if failure is None or not self._calls or self._is_leaving:
            return
        self._say_once(self._describe(failure))
        # Others may wait for this end, in order to go themselves.
        self._send({"kind": "ended", "what": "could not go on", "code": failure["code"]})
        self.finish()
        exits.report_first(self._trace(f"process {self.index} could not go on"))
        if self._hub is not None:
            self._hub.linger(GRACE_SECS, failure)
        exits.leave(failure["code"])

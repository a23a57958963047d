"""The hub: a thread of process 0 that every process, itself too, holds a connection to.

A connection closes the moment its process dies, however it dies, so a loss is known in
milliseconds; JAX's own heartbeats take a minute, and end a process without a word of Python.

It serves a thousand: a message costs the same whatever their number, what is told to all is
encoded once, and nothing is told to all for each of them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable

from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.listening import TICK_SECS, Callers, Connection, encode, listen
from penstock.distributed.meeting_rules import Meetings, Message
from penstock.distributed.secret import is_proof
from penstock.distributed.waiting_times import CONNECT_SECS

_GOODBYE_SECS = 1.0
_BEAT_SECS = 5.0
_MOST_NAMED = 8


class Hub:
    """Serves the processes of one run.

    Whoever proves that it knows the token is let in. A process may be silent for `heartbeat_secs`,
    take a minute to come, and all may stand still for `hang_secs`; None is for ever.
    """

    def __init__(
        self,
        count: int,
        token: str,
        *,
        host: str,
        heartbeat_secs: float,
        hang_secs: float | None,
    ) -> None:
        self.meetings, self._count, self._token = Meetings(count), count, token
        self._heartbeat_secs, self._hang_secs = heartbeat_secs, hang_secs
        self._connect_secs, self._started_at = CONNECT_SECS, time.monotonic()
        self._missing = set(range(count))
        listener = listen(host, 0, max(128, count))
        self.port: int = listener.getsockname()[1]
        self._callers = Callers(listener, count, self._take, self._lose)
        self._has_failed, self._failures = False, list[Message]()
        self._looked_at = self._beat_at = time.monotonic()
        self._over: Message = {"kind": "over", "code": 0}
        self._progress: dict[int, int] = {}
        self._moved_at = time.monotonic()
        self._is_open = True
        self._thread = threading.Thread(target=self._serve, name="penstock hub", daemon=True)
        self._thread.start()

    def linger(self, secs: float, failure: Message | None = None) -> None:
        """Wait, so long at most, until the others are gone, so that each learns why.

        JAX's coordinator ends with this process, and what hangs on it then aborts. Whose failure it
        is, if that process is gone or stopped, is not waited for.
        """
        end = time.monotonic() + secs
        ended_by = time.monotonic() + _GOODBYE_SECS
        gone = failure["index"] if failure and failure.get("is_gone") else 0
        members = self.meetings.members
        while time.monotonic() < end and any(
            # Who has ended needs no more than to hear that all have.
            members[index].ended is None or time.monotonic() < ended_by
            for index in list(self._callers.by_index)
            if index not in (0, gone)
        ):
            time.sleep(0.02)

    def close(self) -> None:
        """Stop serving."""
        self._is_open = False
        self._thread.join(timeout=2 * TICK_SECS + 1)

    def _serve(self) -> None:
        while self._is_open:
            self._callers.work(TICK_SECS)
            now = time.monotonic()
            # This process itself stood still: what the others have said waits in their sockets.
            if now - self._looked_at > max(self._heartbeat_secs / 2, 4 * TICK_SECS):
                for connection in self._callers.by_index.values():
                    connection.heard_at = now
            if now - self._looked_at >= TICK_SECS:
                self._looked_at = now
                self._look_around(now)
        self._callers.close()

    def _take(self, connection: Connection, message: Message) -> None:
        if connection.index is None:
            self._let_in(connection, message)
        assert connection.index is not None
        if message["kind"] == "failed":
            self._broadcast_failure({**message, "kind": "failure", "index": connection.index})
            return
        self._note_progress(connection.index, message)
        for indices, reply in self.meetings.take(connection.index, message):
            if reply["kind"] == "failure":
                self._broadcast_failure(reply)
                return
            self._send(indices, reply)
        if message["kind"] == "ended":
            self._end_member(connection.index, message)

    def _let_in(self, connection: Connection, message: Message) -> None:
        index = message["index"]
        is_ours = message.get("kind") == "hello"
        if not is_ours or not is_proof(message.get("proof"), self._token, f"process {index}"):
            raise ValueError("no member")
        if index not in range(self._count) or index in self._callers.by_index:
            raise ValueError("no place")
        self._callers.admit(connection, int(index))
        self._missing.discard(index)
        # What happened before this process came.
        for failure in self._failures:
            self._send([index], failure)

    def _end_member(self, index: int, message: Message) -> None:
        """Tell the others that a script is over, and all of them when all are."""
        if message["code"] and self._over["code"] == 0:
            what = f"process {index} {message['what']}"
            self._over = {**message, "kind": "over", "index": index, "what": what}
        if self.meetings.num_ended == self._count:
            self._tell_all(self._over)
            return
        # The calls that it has made are over for it: whoever enters another waits in vain.
        failure = {"kind": "failure", "index": index, "code": message["code"] or 1}
        num_calls = self.meetings.members[index].num_calls
        failure |= {"since": num_calls + 1, "is_good_end": not message["what"]}
        what = message["what"] or "has ended its script"
        self._broadcast_failure({**failure, "what": f"process {index} {what}"})

    def _broadcast_failure(self, failure: Message) -> None:
        """Tell all of the first failure; the others follow from it."""
        is_final = failure.get("is_final", False)
        # What was caught in a program is no end; the first end is what people want to know.
        if self._has_failed or _adds_nothing(failure, self._failures):
            return
        self._has_failed = is_final
        if "advice" not in failure:
            member = self.meetings.members[failure["index"]]
            failure = {"step": member.step, "where": member.where, **failure}
        self._failures.append(failure)
        self._tell_all(failure)

    def _tell_all(self, message: Message) -> None:
        self._send(list(self._callers.by_index), message)

    def _send(self, indices: Iterable[int], message: Message) -> None:
        data = memoryview(encode(message))
        for index in indices:
            if connection := self._callers.by_index.get(index):
                self._callers.send(connection, data)

    def _lose(self, connection: Connection) -> None:
        """Take note that a connection is gone; its process is, unless its script was over."""
        index = connection.index
        assert index is not None
        if self.meetings.members[index].ended is None:
            what = "was lost: it was killed, called os._exit, or its machine is gone"
            self._fail(index, what, is_gone=True)

    def _fail(self, index: int, what: str, *, is_gone: bool) -> None:
        failure = {"kind": "failure", "index": index, "code": AGAIN, "is_final": True}
        self._broadcast_failure({**failure, "what": f"process {index} {what}", "is_gone": is_gone})

    def _look_around(self, now: float) -> None:
        if now - self._beat_at >= min(self._heartbeat_secs / 4, _BEAT_SECS):
            self._beat_at = now
            self._tell_all({"kind": "beat"})
        for index, connection in list(self._callers.by_index.items()):
            silent = now - connection.heard_at
            if silent > self._heartbeat_secs:
                what = f"has not answered for {silent:.0f} s: it is stopped, swapped out, or its "
                self._dump_stacks()
                self._fail(index, what + "machine is gone", is_gone=True)
        if now - self._started_at > self._connect_secs:
            for index in sorted(self._missing):
                what = f"has not connected to port {self.port} of process 0 within "
                what += f"{self._connect_secs:g} s: its machine is gone, or may not call there"
                self._fail(index, what, is_gone=True)
            self._missing.clear()
        if self._hang_secs is not None and now - self._moved_at > self._hang_secs:
            self._report_hang(now - self._moved_at)

    def _note_progress(self, index: int, message: Message) -> None:
        """Note whether anything moves: who compiles, or is in no `train` or `test`, hangs not."""
        if (progress := message.get("progress")) is None:
            return
        has_moved = progress != self._progress.get(index)
        if has_moved or not message["is_at_work"] or message["is_compiling"]:
            self._moved_at = time.monotonic()
        self._progress[index] = progress

    def _report_hang(self, secs: float) -> None:
        members = self.meetings.members
        # Whoever is furthest back, and waits for nobody, is waited for.
        running = [member for member in members if not member.waits] or members
        last = min(running, key=lambda member: member.position)
        peers = [m for m in members if m.index != last.index]
        named = ", ".join(f"process {m.index} {m.describe()}" for m in peers[:_MOST_NAMED])
        more = f", and {len(peers) - _MOST_NAMED} more" if len(peers) > _MOST_NAMED else ""
        what = f"has not moved for {secs:.0f} s: it {last.describe()} ({named}{more})"
        self._moved_at = time.monotonic()
        self._dump_stacks()
        self._fail(last.index, what, is_gone=False)

    def _dump_stacks(self) -> None:
        if not self._has_failed:
            self._tell_all({"kind": "dump"})


def _adds_nothing(failure: Message, told: Iterable[Message]) -> bool:
    """Return whether two other processes have failed so that nobody needs to hear of a third.

    A thousand that end or fail alike would tell each other a million times. Two, as a process takes
    no note of its own failure.
    """
    if failure.get("is_final"):
        return False
    until, since = failure.get("until", -math.inf), failure.get("since", math.inf)
    wider = [
        earlier
        for earlier in told
        if earlier.get("until", -math.inf) >= until and earlier.get("since", math.inf) <= since
    ]
    return len({earlier["index"] for earlier in wider}) >= 2

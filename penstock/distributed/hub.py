"""The hub: a thread of process 0 that every process, itself too, holds a connection to.

A connection closes the moment its process dies, however it dies, so a loss is known in
milliseconds; JAX's own heartbeats take a minute, and end a process without a word of Python.

It serves a thousand: a message costs the same whatever their number, what is told to all is
encoded once, and nothing is told to all for each of them.
"""

from __future__ import annotations

import errno
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable

from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.link import LineBuffer, encode, receive
from penstock.distributed.listening import Strangers, listen, raise_descriptor_limit
from penstock.distributed.meeting_rules import Meetings, Message
from penstock.distributed.secret import is_proof
from penstock.distributed.waiting_times import CONNECT_SECS

_GOODBYE_SECS = 1.0
_BEAT_SECS = 5.0
_MOST_NAMED = 8
# A hello takes a hundred.
_MAX_STRANGE_BYTES = 1 << 16
TICK_SECS = 0.25
"""How often the hub looks for who is silent."""


class _Connection:
    """A process's connection, as the hub sees it."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.lines = peer, LineBuffer()
        self.unsent, self.is_blocked = deque[memoryview](), False
        self.index: int | None = None
        self.heard_at = time.monotonic()


class Hub:
    """Serves the processes of one run.

    Arguments:
      count: how many processes there are.
      token: what nobody but the processes knows; each says a proof of it to be let in.
      host: where it listens; at every address of this machine where it is empty.
      heartbeat_secs: how long a process may be silent.
      hang_secs: how long all of them may stand still; None for ever.
      connect_secs: how long a process may take to connect.
    """

    def __init__(
        self,
        count: int,
        token: str,
        *,
        host: str,
        heartbeat_secs: float,
        hang_secs: float | None,
        connect_secs: float = CONNECT_SECS,
    ) -> None:
        self.meetings, self._count, self._token = Meetings(count), count, token
        self._heartbeat_secs, self._hang_secs = heartbeat_secs, hang_secs
        self._connect_secs, self._started_at = connect_secs, time.monotonic()
        self._missing, self._strangers = set(range(count)), Strangers[_Connection](self._lose)
        self._selector = selectors.DefaultSelector()
        raise_descriptor_limit(count)
        self._server = listen(host, 0, max(128, count))
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._by_index: dict[int, _Connection] = {}
        self._has_failed, self._failures = False, list[Message]()
        self._now = self._beat_at = time.monotonic()
        self._over: Message = {"kind": "over", "code": 0}
        self._progress: dict[int, int] = {}
        self._moved_at = time.monotonic()
        self._is_open = True
        self._thread = threading.Thread(target=self._serve, name="penstock hub", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.getsockname()[1]

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def linger(self, secs: float, failure: Message | None = None) -> None:
        """Wait until the other processes are gone, so that each learns why; at most so long.

        JAX's coordinator ends with this process, and what hangs on it then aborts.

        Arguments:
          failure: that one of them is gone or stopped, which is not waited for.
        """
        end = time.monotonic() + secs
        ended_by = time.monotonic() + _GOODBYE_SECS
        gone = failure["index"] if failure and failure.get("is_gone") else 0
        members = self.meetings.members
        while time.monotonic() < end and any(
            # Who has ended needs no more than to hear that all have.
            members[index].ended is None or time.monotonic() < ended_by
            for index in list(self._by_index)
            if index not in (0, gone)
        ):
            time.sleep(0.02)

    def close(self) -> None:
        """Stop serving."""
        self._is_open = False
        self._thread.join(timeout=2 * TICK_SECS + 1)

    def _serve(self) -> None:
        looked_at = time.monotonic()
        while self._is_open:
            ready = self._selector.select(TICK_SECS)
            self._now = time.monotonic()
            for key, events in ready:
                if key.fileobj is self._server:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                else:
                    self._read(key.data)
            now = time.monotonic()
            # This process itself stood still: what the others have said waits in their sockets.
            if now - looked_at > max(self._heartbeat_secs / 2, 4 * TICK_SECS):
                for connection in self._by_index.values():
                    connection.heard_at = now
            if now - looked_at >= TICK_SECS:
                looked_at = now
                self._look_around(now)
                if self._server not in self._selector.get_map():
                    self._selector.register(self._server, selectors.EVENT_READ)
        self._server.close()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # pyright: ignore
        self._selector.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._server.accept()
        except OSError as error:
            # It may be gone already. Where no descriptor is left for it, it waits for the next
            # look around: asked at once, the answer would be the same.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._selector.unregister(self._server)
            return
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(peer)
        self._selector.register(peer, selectors.EVENT_READ, connection)
        self._strangers.add(connection, len(self._missing))

    def _read(self, connection: _Connection) -> None:
        # Another that came in the same moment may have had it dropped.
        if connection.peer.fileno() < 0:
            return
        try:
            piece = receive(connection.peer)
        except BlockingIOError:
            return
        if not piece:
            self._lose(connection)
            return
        connection.heard_at = self._now
        try:
            for said in connection.lines.take(piece):
                self._take(connection, said)
            if connection.index is None and connection.lines.num_bytes > _MAX_STRANGE_BYTES:
                raise ValueError("no member")
        # Whoever speaks otherwise is none of ours: a scanner of ports, a browser.
        except (ValueError, KeyError, TypeError):
            self._lose(connection)

    def _take(self, connection: _Connection, said: Message) -> None:
        if connection.index is None:
            self._let_in(connection, said)
        assert connection.index is not None
        if said["kind"] == "failed":
            self._broadcast_failure({**said, "kind": "failure", "index": connection.index})
            return
        self._note_progress(connection.index, said)
        for indices, reply in self.meetings.take(connection.index, said):
            if reply["kind"] == "failure":
                self._broadcast_failure(reply)
                return
            self._send(indices, reply)
        if said["kind"] == "ended":
            self._end_member(connection.index, said)

    def _let_in(self, connection: _Connection, said: Message) -> None:
        """Take a connection for that of a process.

        Raises:
          ValueError, TypeError: it is none.
        """
        if said.get("kind") != "hello":
            raise ValueError("no member")
        if not is_proof(said.get("proof"), self._token, f"process {said['index']}"):
            raise ValueError("no member")
        if said["index"] not in range(self._count) or said["index"] in self._by_index:
            raise ValueError("no place")
        connection.index = index = int(said["index"])
        self._by_index[index] = connection
        self._missing.discard(index)
        self._strangers.discard(connection)
        # What happened before this process came.
        for failure in self._failures:
            self._send([index], failure)

    def _end_member(self, index: int, said: Message) -> None:
        """Tell the others that a script is over, and all of them when all are."""
        if said["code"] and self._over["code"] == 0:
            what = f"process {index} {said['what']}"
            self._over = {**said, "kind": "over", "index": index, "what": what}
        if self.meetings.num_ended == self._count:
            self._send(list(self._by_index), self._over)
            return
        # The calls that it has made are over for it: whoever enters another waits in vain.
        failure = {"kind": "failure", "index": index, "code": said["code"] or 1}
        num_calls = self.meetings.members[index].num_calls
        failure |= {"since": num_calls + 1, "is_good_end": not said["what"]}
        what = said["what"] or "has ended its script"
        self._broadcast_failure({**failure, "what": f"process {index} {what}"})

    def _broadcast_failure(self, said: Message) -> None:
        """Tell all of the first failure; the others follow from it."""
        is_final = said.get("is_final", False)
        # What was caught in a program is no end; the first end is what people want to know.
        if self._has_failed or _adds_nothing(said, self._failures):
            return
        self._has_failed = is_final
        if "advice" not in said:
            member = self.meetings.members[said["index"]]
            said = {"step": member.step, "where": member.where, **said}
        self._failures.append(said)
        self._send(list(self._by_index), said)

    def _send(self, indices: Iterable[int], said: Message) -> None:
        data = memoryview(encode(said))
        for index in indices:
            connection = self._by_index.get(index)
            if connection is not None:
                connection.unsent.append(data)
                # One whose socket is full is flushed when it has room.
                if not connection.is_blocked:
                    self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        unsent = connection.unsent
        try:
            while unsent:
                sent = connection.peer.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._lose(connection)
            return
        if bool(unsent) != connection.is_blocked:
            connection.is_blocked = bool(unsent)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            self._selector.modify(connection.peer, wanted, connection)

    def _lose(self, connection: _Connection) -> None:
        """Take note that a connection is gone; its process is, unless its script was over."""
        if connection.peer.fileno() < 0:
            return
        self._strangers.discard(connection)
        self._selector.unregister(connection.peer)
        connection.peer.close()
        index = connection.index
        if index is None or self._by_index.pop(index, None) is None:
            return
        if self.meetings.members[index].ended is None:
            what = "was lost: it was killed, called os._exit, or its machine is gone"
            self._fail(index, what, is_gone=True)

    def _fail(self, index: int, what: str, *, is_gone: bool) -> None:
        said = {"kind": "failure", "index": index, "code": AGAIN, "is_final": True}
        self._broadcast_failure({**said, "what": f"process {index} {what}", "is_gone": is_gone})

    def _look_around(self, now: float) -> None:
        if now - self._beat_at >= min(self._heartbeat_secs / 4, _BEAT_SECS):
            self._beat_at = now
            self._send(list(self._by_index), {"kind": "beat"})
        self._strangers.drop_silent()
        for index, connection in list(self._by_index.items()):
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

    def _note_progress(self, index: int, said: Message) -> None:
        """Note whether anything moves: who compiles, or is in no `train` or `test`, hangs not."""
        progress = said.get("progress")
        if progress is None:
            return
        if progress != self._progress.get(index) or not said["is_at_work"] or said["is_compiling"]:
            self._moved_at = time.monotonic()
        self._progress[index] = progress

    def _report_hang(self, secs: float) -> None:
        members = self.meetings.members
        # Whoever is furthest back, and waits for nobody, is waited for.
        running = [member for member in members if not member.waits] or members
        last = min(running, key=lambda member: member.position)
        others = [m for m in members if m.index != last.index]
        named = ", ".join(f"process {m.index} {m.describe()}" for m in others[:_MOST_NAMED])
        more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        what = f"has not moved for {secs:.0f} s: it {last.describe()} ({named}{more})"
        self._moved_at = time.monotonic()
        self._dump_stacks()
        self._fail(last.index, what, is_gone=False)

    def _dump_stacks(self) -> None:
        if not self._has_failed:
            self._send(list(self._by_index), {"kind": "dump"})


def _adds_nothing(said: Message, told: Iterable[Message]) -> bool:
    """Return whether two other processes have failed so that nobody needs to hear of a third.

    A thousand that end or fail alike would tell each other a million times. Two, as a process takes
    no note of its own failure.
    """
    if said.get("is_final"):
        return False
    until, since = said.get("until", -math.inf), said.get("since", math.inf)
    wider = [
        each
        for each in told
        if each.get("until", -math.inf) >= until and each.get("since", math.inf) <= since
    ]
    return len({each["index"] for each in wider}) >= 2

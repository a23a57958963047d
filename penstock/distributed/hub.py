"""The hub: a thread of process 0 that every process, itself too, holds a connection to.

A connection closes the moment its process dies, however it dies, so a loss is known in
milliseconds; JAX's own heartbeats take a minute, and end a process without a word of Python.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time

from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.lines import LineBuffer, encode, receive
from penstock.distributed.listening import listen
from penstock.distributed.meeting_rules import Meetings, Message
from penstock.distributed.waiting_times import CONNECT_SECS

_GOODBYE_SECS = 1.0
# A hello takes a hundred.
_MAX_STRANGE_BYTES = 1 << 16
TICK_SECS = 0.25
"""How often the hub looks for who is silent."""


class _Connection:
    """A process's connection, as the hub sees it."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.lines, self.unsent = peer, LineBuffer(), bytearray()
        self.index: int | None = None
        self.opened_at = self.heard_at = time.monotonic()


class Hub:
    """Serves the processes of one run.

    Arguments:
      count: how many processes there are.
      token: what a process must say to be let in.
      host: where it listens; at every address of this machine where it is empty.
      heartbeat_secs: how long a process may be silent.
      hang_secs: how long all of them may stand still; None for ever.
      connect_secs: how long a process may take to connect, and a connection to say whose it is.
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
        self._missing = set(range(count))
        self._selector = selectors.DefaultSelector()
        self._server = listen(host, 0, max(128, count))
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._by_index: dict[int, _Connection] = {}
        self._has_failed, self._failures = False, list[Message]()
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
            for key, events in self._selector.select(TICK_SECS):
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
        self._selector.register(peer, selectors.EVENT_READ, _Connection(peer))

    def _read(self, connection: _Connection) -> None:
        try:
            piece = receive(connection.peer)
        except BlockingIOError:
            return
        if not piece:
            self._lose(connection)
            return
        connection.heard_at = time.monotonic()
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
            if said.get("kind") != "hello" or said.get("token") != self._token:
                raise ValueError("no member")
            if said["index"] not in range(self._count) or said["index"] in self._by_index:
                raise ValueError("no place")
            connection.index = int(said["index"])
            self._by_index[connection.index] = connection
            self._missing.discard(connection.index)
            # What happened before this process came.
            for failure in self._failures:
                self._send(connection.index, failure)
        if said["kind"] == "failed":
            self._broadcast_failure({**said, "kind": "failure", "index": connection.index})
            return
        self._note_progress(connection.index, said)
        for index, reply in self.meetings.take(connection.index, said):
            if reply["kind"] == "failure":
                self._broadcast_failure(reply)
                return
            self._send(index, reply)
        if said["kind"] == "ended":
            self._end_member(connection.index, said)

    def _end_member(self, index: int, said: Message) -> None:
        """Tell the others that a script is over, and all of them when all are."""
        if said["code"] and self._over["code"] == 0:
            self._over = {
                **said,
                "kind": "over",
                "index": index,
                "what": f"process {index} {said['what']}",
            }
        members = self.meetings.members
        if all(member.ended is not None for member in members):
            for each in list(self._by_index):
                self._send(each, self._over)
            return
        # The calls that it has made are over for it: whoever enters another waits in vain.
        failure = {"kind": "failure", "index": index, "code": said["code"] or 1}
        failure |= {"since": members[index].num_calls + 1, "is_good_end": not said["what"]}
        what = said["what"] or "has ended its script"
        self._broadcast_failure({**failure, "what": f"process {index} {what}"})

    def _broadcast_failure(self, said: Message) -> None:
        """Tell all of the first failure; the others follow from it."""
        is_final = said.get("is_final", False)
        # What was caught in a program is no end; the first end is what people want to know.
        if self._has_failed:
            return
        self._has_failed = is_final
        if "advice" not in said:
            member = self.meetings.members[said["index"]]
            said = {"step": member.step, "where": member.where, **said}
        self._failures.append(said)
        for index in list(self._by_index):
            self._send(index, said)

    def _send(self, index: int, said: Message) -> None:
        connection = self._by_index.get(index)
        if connection is not None:
            connection.unsent += encode(said)
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.peer.send(connection.unsent) if connection.unsent else 0
            del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._lose(connection)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.peer, wanted, connection)

    def _lose(self, connection: _Connection) -> None:
        """Take note that a connection is gone; its process is, unless its script was over."""
        if connection.peer.fileno() < 0:
            return
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
        for index in list(self._by_index):
            self._send(index, {"kind": "beat"})
        for index, connection in list(self._by_index.items()):
            silent = now - connection.heard_at
            if silent > self._heartbeat_secs:
                what = f"has not answered for {silent:.0f} s: it is stopped, swapped out, or its "
                self._dump_stacks()
                self._fail(index, what + "machine is gone", is_gone=True)
        if now - self._started_at > self._connect_secs:
            self._end_wait_for_connections(now)
        if self._hang_secs is not None and now - self._moved_at > self._hang_secs:
            self._report_hang(now - self._moved_at)

    def _end_wait_for_connections(self, now: float) -> None:
        """Name who has not come, and let go of connections that do not say whose they are."""
        for index in sorted(self._missing):
            what = f"has not connected to port {self.port} of process 0 within "
            what += f"{self._connect_secs:g} s: its machine is gone, or may not call there"
            self._fail(index, what, is_gone=True)
        self._missing.clear()
        connections = [key.data for key in self._selector.get_map().values() if key.data]
        for each in connections:
            if each.index is None and now - each.opened_at > self._connect_secs:
                self._lose(each)

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
        others = ", ".join(
            f"process {m.index} {m.describe()}" for m in members if m.index != last.index
        )
        what = f"has not moved for {secs:.0f} s: it {last.describe()} ({others})"
        self._moved_at = time.monotonic()
        self._dump_stacks()
        self._fail(last.index, what, is_gone=False)

    def _dump_stacks(self) -> None:
        if not self._has_failed:
            for index in list(self._by_index):
                self._send(index, {"kind": "dump"})

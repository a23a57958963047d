"""Messages over a socket, JSON, one in a line; the link of a process to the hub."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

from penstock.distributed import exits
from penstock.distributed.meeting_rules import Message
from penstock.distributed.waiting_times import CONNECT_SECS

_PIECE = 1 << 16


def encode(said: Message) -> bytes:
    """Return a message as it travels."""
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


class LineBuffer:
    """Puts messages together from the pieces that a socket gives."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def num_bytes(self) -> int:
        """The size of the message that is not complete."""
        return len(self._rest)

    def take(self, piece: bytes) -> Iterator[Message]:
        """Yield the messages that are complete with this piece; ValueError where one is none."""
        self._rest += piece
        if b"\n" not in piece:
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            try:
                said = json.loads(line)
            except RecursionError as error:
                raise ValueError("expected a dict, got brackets") from error
            if not isinstance(said, dict):
                raise ValueError(f"expected a dict, got {said!r:.100}")
            yield said


def receive(connection: socket.socket) -> bytes:
    """Return what has arrived, nothing at the end of the connection; waits as the socket does."""
    try:
        return connection.recv(_PIECE)
    except BlockingIOError:
        raise
    # A killed process leaves a reset as often as an end.
    except OSError:
        return b""


_TICK_SECS, _EAGER_SECS = 0.1, 0.02


class Link:
    """A connection to the hub, which may be silent for `heartbeat_secs`.

    Its thread calls `hear` with each message, `lose` at last with what became of the hub, and
    `tick` often, which returns whether to be called still more often: while all come to a stand,
    who stands behind another must know.
    """

    def __init__(
        self,
        address: tuple[str, int],
        heartbeat_secs: float,
        *,
        hear: Callable[[Message], None],
        lose: Callable[[str], None],
        tick: Callable[[], bool],
    ) -> None:
        self._heartbeat_secs, self._beat_secs = heartbeat_secs, min(1.0, heartbeat_secs / 4)
        self._hear, self._lose, self._tick = hear, lose, tick
        self._sending, self._is_over = threading.Lock(), False
        self._peer = socket.create_connection(address, timeout=CONNECT_SECS)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer.settimeout(None)
        # A machine that is switched off takes nothing, and refuses nothing: the sender, and behind
        # it the beats of the thread, would wait for a quarter of an hour.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(2000 * heartbeat_secs)
            self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._thread = threading.Thread(target=self._listen, name="penstock group", daemon=True)

    def start(self, beat: Callable[[], None]) -> None:
        """Begin to listen, and call `beat` in the thread to say that this process lives."""
        self._beat = beat
        self._thread.start()

    def send(self, said: Message) -> None:
        """Say something to the hub; that it is gone is found out by the thread."""
        with contextlib.suppress(OSError), self._sending:
            self._peer.sendall(encode(said))

    def hang_up(self) -> None:
        """End the connection, and the thread."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._peer.close()

    def _listen(self) -> None:
        try:
            what = self._hear_until_lost()
        finally:
            exits.disarm_stack_dump()
        if not self._is_over:
            self._lose(what)

    def _hear_until_lost(self) -> str:
        """Hear and beat as long as the hub is there; return what became of it."""
        lines, heard_at, beat_at = LineBuffer(), time.monotonic(), 0.0
        # Not `select`, which takes no descriptor above 1023: a reader may hold many files open.
        poll = select.poll()
        poll.register(self._peer, select.POLLIN)
        while True:
            now, is_eager = time.monotonic(), self._tick()
            if now - beat_at >= self._beat_secs:
                beat_at = now
                self._beat()
                exits.arm_stack_dump(4 * self._heartbeat_secs)
            if poll.poll(1000 * (_EAGER_SECS if is_eager else _TICK_SECS)):
                piece = receive(self._peer)
                if not piece:
                    return "was lost: it was killed, called os._exit, or its machine is gone"
                heard_at = time.monotonic()
                for said in lines.take(piece):
                    self._hear(said)
            elif time.monotonic() - now > self._heartbeat_secs / 2:
                heard_at = time.monotonic()  # this process itself stood still
            elif time.monotonic() - heard_at > self._heartbeat_secs:
                return f"has not answered for {self._heartbeat_secs:.0f} s"

"""Messages over sockets, JSON, one in a line; who calls those that listen, and where they do."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from penstock.distributed.meeting_rules import Message

# How long a connection may take to say whose it is, and how much it may say: a hello takes 200.
_HELLO_SECS, _MAX_STRANGE_BYTES = 5.0, 1 << 14
# How many more connections may be unknown than processes are missing.
_NUM_SPARE = 16
# What a process may have open beside its connections; most systems give 1,024 in all.
_OWN_DESCRIPTORS = 512

TICK_SECS = 0.25
"""How often is looked for who is silent."""


_PIECE = 1 << 16


def encode(message: Message) -> bytes:
    """Return a message as it travels."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


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
                message = json.loads(line)
            except RecursionError as error:
                raise ValueError("expected a dict, got brackets") from error
            if not isinstance(message, dict):
                raise ValueError(f"expected a dict, got {message!r:.100}")
            yield message


def receive(connection: socket.socket) -> bytes:
    """Return what has arrived, nothing at the end of the connection; waits as the socket does."""
    try:
        return connection.recv(_PIECE)
    except BlockingIOError:
        raise
    # A killed process leaves a reset as often as an end.
    except OSError:
        return b""


class Connection:
    """One that has called; `index` is that of its process, once it is admitted."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.lines = peer, LineBuffer()
        self.index: int | None = None
        self.opened_at = self.heard_at = time.monotonic()
        self.unsent, self.is_blocked = deque[memoryview](), False

    @property
    def is_closed(self) -> bool:
        """Whether it was dropped."""
        return self.peer.fileno() < 0


class Callers:
    """Those that call a socket that listens, of which each says messages; so many are expected.

    Those that have not said whose they are are few, and none for long: silent ones would take all
    descriptors of the process. Whoever says no message, or what `hear` raises a ValueError,
    KeyError or TypeError for, is none of ours, as a browser, and is dropped. `lose` is called with
    each admitted connection that is over.
    """

    def __init__(
        self,
        listener: socket.socket,
        count: int,
        hear: Callable[[Connection, Message], None],
        lose: Callable[[Connection], None],
    ) -> None:
        raise_descriptor_limit(count)
        self.listener, self._count, self._hear, self._lose = listener, count, hear, lose
        self.by_index: dict[int, Connection] = {}
        self._strangers: dict[Connection, None] = {}  # the oldest first
        self._looked_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def work(self, max_secs: float) -> None:
        """Wait at most so long, and take what has come."""
        for key, events in self._selector.select(max_secs):
            connection: Connection | None = key.data
            if connection is None:
                self._accept()
            # Another that came in the same moment may have had it dropped.
            elif connection.is_closed:
                continue
            elif events & selectors.EVENT_WRITE:
                self._flush(connection)
            else:
                self._read(connection)
        if time.monotonic() - self._looked_at >= TICK_SECS:
            self._look_around()

    def admit(self, connection: Connection, index: int) -> None:
        """Take a connection for that of a process."""
        connection.index = index
        self.by_index[index] = connection
        self._strangers.pop(connection, None)

    def send(self, connection: Connection, data: memoryview) -> None:
        """Send what is encoded, now or when the connection has room."""
        connection.unsent.append(data)
        if not connection.is_blocked:
            self._flush(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection, which is lost."""
        if connection.is_closed:
            return
        self._strangers.pop(connection, None)
        self._selector.unregister(connection.peer)
        connection.peer.close()
        if connection.index is not None:
            del self.by_index[connection.index]
            self._lose(connection)

    def close(self) -> None:
        """Close all of them, and the socket that listens."""
        self.listener.close()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # pyright: ignore
        self._selector.close()

    def _accept(self) -> None:
        try:
            peer, _ = self.listener.accept()
        except OSError as error:
            # It may be gone already. Where no descriptor is left for it, it waits for the next
            # look around: asked at once, the answer would be the same.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._selector.unregister(self.listener)
            return
        peer.setblocking(False)
        # macOS refuses it of one that has gone already, which reading finds out.
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(peer)
        self._selector.register(peer, selectors.EVENT_READ, connection)
        self._strangers[connection] = None
        # A process speaks at once: the oldest is none.
        if len(self._strangers) > self._count - len(self.by_index) + _NUM_SPARE:
            self.drop(next(iter(self._strangers)))

    def _look_around(self) -> None:
        self._looked_at = time.monotonic()
        for stranger in list(self._strangers):
            if self._looked_at - stranger.opened_at >= _HELLO_SECS:
                self.drop(stranger)
        if self.listener not in self._selector.get_map():
            self._selector.register(self.listener, selectors.EVENT_READ)

    def _read(self, connection: Connection) -> None:
        try:
            piece = receive(connection.peer)
        except BlockingIOError:
            return
        connection.heard_at = time.monotonic()
        try:
            for message in connection.lines.take(piece):
                if not connection.is_closed:
                    self._hear(connection, message)
        except (ValueError, KeyError, TypeError):
            piece = b""
        is_stranger = connection.index is None
        if not piece or (is_stranger and connection.lines.num_bytes > _MAX_STRANGE_BYTES):
            self.drop(connection)

    def _flush(self, connection: Connection) -> None:
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
            self.drop(connection)
            return
        if bool(unsent) != connection.is_blocked:
            connection.is_blocked = bool(unsent)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            self._selector.modify(connection.peer, wanted, connection)


def raise_descriptor_limit(num_processes: int) -> None:
    """Let this process have a connection from each of so many, here and at JAX's coordinator."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OWN_DESCRIPTORS + 4 * num_processes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Where a system refuses, the connections that fit are taken.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine to itself, and nobody else can call there."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_own_address(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # no name has 64 letters without a dot, or two dots together
        return False
    for family, kind, protocol, _, address in addresses:
        # Only an address of this machine can be bound.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens at a host and a port, 0 for a free one.

    An empty host is every address of this machine, of both kinds.
    """
    if host:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    return socket.create_server(("", port), backlog=backlog)

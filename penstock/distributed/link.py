"""Messages over a socket: JSON, one in a line."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

from penstock.distributed.meeting_rules import Message

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

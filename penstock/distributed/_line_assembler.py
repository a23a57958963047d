"""Whole lines of what a process writes, however the bytes arrive."""

from __future__ import annotations

_MAX_BYTES = 1 << 20
_SHOWN_AFTER_SECS = 5.0


class LineAssembler:
    r"""Cut a stream of bytes into lines.

    Text behind a carriage return replaces what stood before it, as in a terminal: of a progress bar
    its last state is the line. What stands without a newline for 5 s becomes a line as well, so
    that a long bar, or the last words of a process that hangs, can be read; and so does each MiB of
    a line that is longer, which bounds the memory.

    >>> lines = LineAssembler()
    >>> lines.feed(b"one\ntw", now=0.0), lines.feed(b"o\n 1%\r 2%\r\n", now=0.0)
    ([b'one'], [b'two', b' 2%'])
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._pending_since = 0.0
        # Whether a part of the line under way was given out: its newline alone is no empty line.
        self._is_begun = False

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that end in these bytes, without their ends.

        Arguments:
          now: the time, in seconds, as `show` gets it.
        """
        if not self._pending or b"\n" in data:
            self._pending_since = now
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            self._append(part)
            line = self._take()
            if line or not self._is_begun:
                lines.append(line)
            self._is_begun = False
        self._append(rest)
        while len(self._pending) > self._max_bytes:
            lines.append(bytes(self._pending[: self._max_bytes]))
            del self._pending[: self._max_bytes]
            self._is_begun = True
        return lines

    def show(self, now: float, *, is_last: bool = False) -> list[bytes]:
        """Return what has stood without a newline for long; none, or one line.

        Arguments:
          is_last: whether nothing follows: however short it has stood.
        """
        if not self._pending or not (is_last or now - self._pending_since >= _SHOWN_AFTER_SECS):
            return []
        self._pending_since = now
        line = self._take()
        # Blanks are what a progress bar clears its line with.
        if not line.strip():
            return []
        self._is_begun = True
        return [line]

    def _append(self, part: bytes) -> None:
        is_replaced = b"\r" in part or self._pending.endswith(b"\r")
        self._pending += part
        if is_replaced:
            # The last may belong to a newline that is still to come.
            end = len(self._pending.rstrip(b"\r"))
            del self._pending[: self._pending.rfind(b"\r", 0, end) + 1]

    def _take(self) -> bytes:
        line = bytes(self._pending.rstrip(b"\r"))
        self._pending.clear()
        return line

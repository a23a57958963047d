"""Lines of several processes on one stdout and one stderr, written without ever waiting."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence, Sized
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 31)
_RESET = b"\x1b[0m"
_MAX_QUEUED_BYTES = 1 << 20
# A wait wakes up when a process writes or, on Linux, ends; signals are looked for after it.
_TICK_SECS = 0.1


class _Sink:
    """Where a stream goes: a descriptor, or a stream that has none; and what is queued for it."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self.name = name
        self.error: OSError | None = None
        self.num_queued_bytes = 0
        self._queue: deque[memoryview] = deque()
        self._stream = stream
        self._descriptor: int | None = None
        self.file: tuple[int, int] | None = None
        self._is_regular = self.is_coloured = False
        # pytest and Jupyter have streams without a descriptor.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # What this process has printed comes first.
            stream.flush()  # type: ignore[union-attr]
            self._descriptor = stream.fileno()  # type: ignore[union-attr]
            status = os.fstat(self._descriptor)
            self.file = status.st_dev, status.st_ino
            self._is_regular = stat.S_ISREG(status.st_mode)
            is_refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
            self.is_coloured = os.isatty(self._descriptor) and not is_refused

    @property
    def awaited(self) -> int | None:
        """The descriptor that has to become writable; None where nothing is queued."""
        return self._descriptor if self._queue else None

    def put(self, data: bytes) -> None:
        """Queue what should be written."""
        if data and self.error is None:
            self._queue.append(memoryview(data))
            self.num_queued_bytes += len(data)

    def flush(self) -> None:
        """Write what goes without waiting."""
        while self._queue:
            data = self._queue.popleft()
            try:
                num_written = self._write(data)
            # Somebody else has made the descriptor one that never waits.
            except BlockingIOError:
                num_written = 0
            except OSError as error:
                self.error, self.num_queued_bytes = error, 0
                self._queue.clear()
                return
            self.num_queued_bytes -= num_written
            if num_written < len(data):
                self._queue.appendleft(data[num_written:])
            if not num_written:
                return

    def _write(self, data: memoryview) -> int:
        if self._descriptor is None:
            if self._stream is not None:
                self._stream.write(bytes(data).decode(errors="replace"))
                self._stream.flush()
            return len(data)
        if self._is_regular:
            return os.write(self._descriptor, data)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        # What polls as writable takes this many bytes at once.
        return os.write(self._descriptor, data[: select.PIPE_BUF]) if poll.poll(0) else 0


class LinePrinter:
    """Print the lines of processes, each with the number of its process in front.

    Lines are queued and written as far as their reader takes them: whoever waits in `| less` must
    not keep signals from the processes, nor the end of one from being noticed.
    """

    def __init__(self) -> None:
        out, error = _Sink(sys.stdout, "standard output"), _Sink(sys.stderr, "standard error")
        # One queue, so that lines stay whole, where both are one terminal or file.
        is_one = out.file is not None and out.file == error.file
        self._sinks = (out, out if is_one else error)

    @property
    def failure(self) -> tuple[str, OSError] | None:
        """The stream that cannot be written, and why: its lines are dropped; None without one."""
        failed = [(each.name, each.error) for each in self._sinks if each.error is not None]
        return failed[0] if failed else None

    def is_full(self, *, is_error: bool) -> bool:
        """Whether no more lines should be made for stdout, or stderr, until some are written."""
        return self._sinks[is_error].num_queued_bytes > _MAX_QUEUED_BYTES

    def print_lines(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        """Queue lines of a process."""
        sink = self._sinks[is_error]
        prefix = b"[%d] " % rank
        if sink.is_coloured:
            prefix = b"\x1b[%dm[%d]%s " % (_COLOURS[rank % len(_COLOURS)], rank, _RESET)
            # A colour that a line does not end would run into the next process's.
            lines = [line + _RESET if b"\x1b[" in line else line for line in lines]
        sink.put(b"".join(prefix + line + b"\n" for line in lines))

    def say(self, text: str) -> None:
        """Queue a line of the launcher's own, on stderr."""
        self._sinks[True].put(f"penstock launch: {text}\n".encode(errors="replace"))

    def flush(self) -> None:
        """Write what can be written without waiting."""
        for sink in self._sinks:
            sink.flush()

    def wait(self, descriptors: Iterable[int] = ()) -> None:
        """Wait until something can be read or written, a tenth of a second at most."""
        with selectors.PollSelector() as selector:
            for descriptor in descriptors:
                selector.register(descriptor, selectors.EVENT_READ)
            awaited = {sink.awaited for sink in self._sinks}
            for descriptor in filter(None, awaited):
                selector.register(descriptor, selectors.EVENT_WRITE)
            selector.select(_TICK_SECS)

    def pause(self, received: Sized, secs: float) -> None:
        """Write what is queued, until seconds are over or a signal is received."""
        end = time.monotonic() + secs
        while not received and time.monotonic() < end:
            self.wait()
            self.flush()

    def drain(self, received: Sized, max_secs: float) -> None:
        """Write all that is queued, unless seconds are over or a signal is received."""
        end = time.monotonic() + max_secs
        self.flush()
        while any(sink.num_queued_bytes for sink in self._sinks):
            if received or time.monotonic() >= end:
                return
            self.wait()
            self.flush()

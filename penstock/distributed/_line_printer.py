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
    """Where one of the two streams goes: a descriptor, or a stream that has none."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self.name = name
        self._stream = stream
        self.descriptor: int | None = None
        # pytest and Jupyter have streams without a descriptor.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self.descriptor = stream.fileno()  # type: ignore[union-attr]
        self.is_coloured = (
            self.descriptor is not None
            and os.isatty(self.descriptor)
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        self._is_file = self.descriptor is not None and stat.S_ISREG(
            os.fstat(self.descriptor).st_mode
        )

    def write(self, data: memoryview) -> int:
        """Write what goes without waiting; return the number of bytes, 0 for none."""
        if self.descriptor is None:
            if self._stream is not None:
                self._stream.write(bytes(data).decode(errors="replace"))
                self._stream.flush()
            return len(data)
        if self._is_file:
            return os.write(self.descriptor, data)
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        # What polls as writable takes this many bytes at once.
        return os.write(self.descriptor, data[: select.PIPE_BUF]) if poll.poll(0) else 0


class LinePrinter:
    """Print the lines of processes, each with the number of its process in front.

    Lines are queued and written as far as their reader takes them: whoever waits in `| less` must
    not keep signals from the processes, nor the end of one from being noticed. A queue for both
    streams keeps their lines whole where both are one file.

    Attributes:
      error: what kept a stream from being written, once there is something; the rest of that
        stream's lines are dropped.
    """

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # What this process has printed comes first.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        self.error: tuple[str, OSError] | None = None
        self._sinks = (_Sink(sys.stdout, "standard output"), _Sink(sys.stderr, "standard error"))
        self._closed: set[_Sink] = set()
        self._queue: deque[tuple[_Sink, memoryview]] = deque()
        self._num_queued_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more lines should be made until some are written."""
        return self._num_queued_bytes > _MAX_QUEUED_BYTES

    def print_lines(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        """Queue lines of a process."""
        sink = self._sinks[is_error]
        prefix = b"[%d] " % rank
        if sink.is_coloured:
            prefix = b"\x1b[%dm[%d]%s " % (_COLOURS[rank % len(_COLOURS)], rank, _RESET)
            # A colour that a line does not end would run into the next process's.
            lines = [line + _RESET if b"\x1b[" in line else line for line in lines]
        self._put(sink, b"".join(prefix + line + b"\n" for line in lines))

    def say(self, text: str) -> None:
        """Queue a line of the launcher's own, on stderr."""
        self._put(self._sinks[True], f"penstock launch: {text}\n".encode(errors="replace"))

    def flush(self) -> None:
        """Write what can be written without waiting."""
        while self._queue:
            sink, data = self._queue[0]
            num_written = self._write(sink, data)
            if not num_written:
                return
            self._num_queued_bytes -= num_written
            if num_written < len(data):
                self._queue[0] = sink, data[num_written:]
            else:
                self._queue.popleft()

    def wait(self, descriptors: Iterable[int] = ()) -> None:
        """Wait until something can be read or written, a tenth of a second at most."""
        with selectors.PollSelector() as selector:
            for descriptor in descriptors:
                selector.register(descriptor, selectors.EVENT_READ)
            if self._queue and self._queue[0][0].descriptor is not None:
                selector.register(self._queue[0][0].descriptor, selectors.EVENT_WRITE)
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
        while self._queue and not received and time.monotonic() < end:
            self.wait()
            self.flush()

    def _put(self, sink: _Sink, data: bytes) -> None:
        if data:
            self._queue.append((sink, memoryview(data)))
            self._num_queued_bytes += len(data)

    def _write(self, sink: _Sink, data: memoryview) -> int:
        if sink in self._closed:
            return len(data)
        try:
            return sink.write(data)
        # Somebody else has made the descriptor one that never waits.
        except BlockingIOError:
            return 0
        except OSError as error:
            self._closed.add(sink)
            self.error = self.error or (sink.name, error)
            return len(data)

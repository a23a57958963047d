"""The processes of a group: their start, their lines on one stdout and one stderr, their end."""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import IO, TextIO

_COLOURS = (36, 33, 32, 35, 34, 31)
_RESET = b"\x1b[0m"
_MAX_QUEUED_BYTES = _MAX_LINE_BYTES = 1 << 20
_SHOWN_AFTER_SECS = 5.0
# A wait wakes up when a process writes or, on Linux, ends; signals are looked for after it.
_TICK_SECS = 0.1
_READ_BYTES = 1 << 16
# What it leaves behind gets this long to pass on last words, then as long to die.
_LEFTOVER_SECS = 1.0
# A process that the kernel cannot kill, as it waits for a disk or a driver, is left behind.
_UNKILLABLE_SECS = 10.0
_NUM_LAST_LINES = 40
_MAX_ERROR_LENGTH = 300
# The last line of a traceback, or of a penstock command that failed.
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Group|Interrupt|Exit|Iteration)"
)
_MESSAGE = re.compile(rf"{_ERROR.pattern}(?::|$)|penstock [a-z-]+: ")
_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]")


class _Sink:
    """Where a stream goes: a descriptor, or a stream that has none; and what is queued for it."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self.name = name
        self.error: OSError | None = None
        self.queue = bytearray()
        self.descriptor: int | None = None
        self.file: tuple[int, int] | None = None
        self._stream = stream
        self._is_regular = self.is_coloured = False
        # pytest and Jupyter have streams without a descriptor.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # What this process has printed comes first.
            stream.flush()  # type: ignore[union-attr]
            self.descriptor = stream.fileno()  # type: ignore[union-attr]
            status = os.fstat(self.descriptor)
            self.file = status.st_dev, status.st_ino
            self._is_regular = stat.S_ISREG(status.st_mode)
            is_refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
            self.is_coloured = os.isatty(self.descriptor) and not is_refused

    def put(self, data: bytes) -> None:
        """Queue what should be written."""
        if self.error is None:
            self.queue += data

    def flush(self) -> None:
        """Write what goes without waiting."""
        try:
            while self.queue and (num_written := self._write()):
                del self.queue[:num_written]
        # Somebody else has made the descriptor one that never waits.
        except BlockingIOError:
            return
        except OSError as error:
            self.error = error
            self.queue.clear()

    def _write(self) -> int:
        if self.descriptor is None:
            if self._stream is not None:
                self._stream.write(self.queue.decode(errors="replace"))
                self._stream.flush()
            return len(self.queue)
        if self._is_regular:
            return os.write(self.descriptor, self.queue)
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        # What polls as writable takes this many bytes at once.
        return os.write(self.descriptor, self.queue[: select.PIPE_BUF]) if poll.poll(0) else 0


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
        failures = ((sink.name, sink.error) for sink in self._sinks if sink.error is not None)
        return next(failures, None)

    def is_full(self, *, is_error: bool) -> bool:
        """Whether no more lines should be made for stdout, or stderr, until some are written."""
        return len(self._sinks[is_error].queue) > _MAX_QUEUED_BYTES

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
            awaited = {sink.descriptor for sink in self._sinks if sink.queue}
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
        while any(sink.queue for sink in self._sinks) and time.monotonic() < end and not received:
            self.wait()
            self.flush()


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

    def __init__(self, max_bytes: int = _MAX_LINE_BYTES) -> None:
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


class ChildProcess:
    """A process in a process group of its own, whose output is printed line by line.

    Arguments:
      hears_alone: whether signals that ask it to end go to the process itself, or to its group.

    Attributes:
      code: its exit code as `subprocess` has it; None while it runs.
      is_killed: whether `kill` was what ended it.
      is_asked: whether it ended after it was asked to, or killed: not by itself.
      is_over: whether it has ended, and all that it has printed is queued.
    """

    def __init__(
        self,
        rank: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        printer: LinePrinter,
        *,
        hears_alone: bool,
    ) -> None:
        self.rank = rank
        self.code: int | None = None
        self.is_killed = self.is_asked = self.is_over = False
        self._printer = printer
        self._hears_alone = hears_alone
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self._ended_at = self._killed_at = float("inf")
        self._are_leftovers_killed = False
        self._last_lines: deque[bytes] = deque(maxlen=_NUM_LAST_LINES)
        self._pipes: dict[IO[bytes], LineAssembler] = {}
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe] = LineAssembler()
        # It becomes readable when the process ends, on Linux; elsewhere its end is looked for.
        self._handle: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._handle = os.pidfd_open(self.pid)

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        return self._process.pid

    @property
    def awaited(self) -> Iterator[int]:
        """The descriptors that become readable when there is something to do."""
        yield from (pipe.fileno() for pipe in self._pipes if not self._is_held_up(pipe))
        if self.code is None and self._handle is not None:
            yield self._handle

    @property
    def is_stopped(self) -> bool:
        """Whether it hears no signal but those that kill it or have it go on."""
        if self.code is not None or not hasattr(os, "waitid"):
            return False
        looks = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, looks) is not None
        except ChildProcessError:  # it has ended since, and was waited for
            return False

    def step(self, now: float) -> None:
        """Queue what it has written, and notice its end."""
        if self.code is None:
            self._notice_end(now)
        # The lines of one that has ended are read as long as what it left behind may write some.
        for pipe, lines in tuple(self._pipes.items()):
            if not self._is_held_up(pipe):
                self._read(pipe, lines, now)
        if self.code is None or self.is_over:
            return
        is_late = now > self._ended_at + _LEFTOVER_SECS
        if not self._are_leftovers_killed and (is_late or not self._pipes):
            self._signal_group(signal.SIGKILL)
            self._are_leftovers_killed = True
        # Whoever still holds a pipe has left the group.
        if not self._pipes or now > self._ended_at + 2 * _LEFTOVER_SECS:
            self.close(now)

    def ask_to_end(self, number: int) -> None:
        """Send a signal on which it may save what it has."""
        if self.code is not None:
            return
        self.is_asked = True
        if self._hears_alone:
            self._process.send_signal(number)
        else:
            self._signal_group(number)

    def kill(self, now: float) -> None:
        """Kill it and what it has started."""
        if self.code is None:
            self.is_killed = self.is_asked = True
            self._killed_at = min(now, self._killed_at)
            self._signal_group(signal.SIGKILL)

    def close(self, now: float) -> None:
        """Let go of it; of one that runs, after `kill`."""
        if self.code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEFTOVER_SECS)
        for pipe, lines in tuple(self._pipes.items()):
            self._end_pipe(pipe, lines, now)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self.is_over = True

    def find_error(self) -> str:
        """Return the last line on its stderr that reads as an error; nothing without one."""
        return find_error(self._last_lines)

    def _notice_end(self, now: float) -> None:
        self.code = self._process.poll()
        if self.code is None and now > self._killed_at + _UNKILLABLE_SECS:
            self._printer.say(f"process {self.rank} ({self.pid}) cannot be killed: it is left.")
            self.code = -signal.SIGKILL
        if self.code is not None:
            self._ended_at = now

    def _read(self, pipe: IO[bytes], lines: LineAssembler, now: float) -> None:
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            self._print(pipe, lines.show(now))
            return
        if data:
            self._print(pipe, lines.feed(data, now))
        else:
            self._end_pipe(pipe, lines, now)

    def _end_pipe(self, pipe: IO[bytes], lines: LineAssembler, now: float) -> None:
        self._print(pipe, lines.show(now, is_last=True))
        pipe.close()
        del self._pipes[pipe]

    def _print(self, pipe: IO[bytes], lines: Sequence[bytes]) -> None:
        is_error = pipe is self._process.stderr
        if is_error:
            self._last_lines.extend(line for line in lines if line.strip())
        self._printer.print_lines(self.rank, lines, is_error=is_error)

    def _is_held_up(self, pipe: IO[bytes]) -> bool:
        # When nobody is left to write, the pipe holds little: a stopped reader keeps no end away.
        if self._are_leftovers_killed:
            return False
        return self._printer.is_full(is_error=pipe is self._process.stderr)

    def _signal_group(self, number: int) -> None:
        # All of the group may have ended by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def find_error(lines: Iterable[bytes]) -> str:
    """Return the last line that reads as an exception, or as a failure of a command of ours.

    >>> find_error([b"Traceback:", b"  f()", b"ValueError: 7 is too much", b"bye"])
    'ValueError: 7 is too much'
    """
    for line in reversed([*lines]):
        text = _CONTROLS.sub("", line[: 8 * _MAX_ERROR_LENGTH].decode(errors="replace"))
        if _MESSAGE.match(text):
            is_long = len(text) > _MAX_ERROR_LENGTH
            return f"{text[: _MAX_ERROR_LENGTH - 3]}..." if is_long else text
    return ""

"""The processes of a group: their start, their lines on one stdout and one stderr, their end."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import IO, TextIO

_MAX_LINE_BYTES = 1 << 20
_SHOWN_AFTER_SECS = 5.0
TICK_SECS = 0.1
"""How often is looked for what wakes nobody: signals, and a process that cannot be killed."""

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


class _Output:
    """Where a stream goes: a descriptor, or a stream that has none."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self.name = name
        self.error: OSError | None = None
        self.lock = threading.Lock()
        self.descriptor: int | None = None
        self._stream = stream
        # pytest and Jupyter have streams without a descriptor.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # What this process has printed comes first.
            stream.flush()  # type: ignore[union-attr]
            self.descriptor = stream.fileno()  # type: ignore[union-attr]

    def write(self, data: bytes) -> None:
        """Write all of it, unless that has failed before; wait for a reader that has stopped."""
        with self.lock:
            try:
                while data and self.error is None:
                    data = data[self._write(data) :]
            except OSError as error:
                self.error = error

    def _write(self, data: bytes) -> int:
        if self.descriptor is None:
            if self._stream is not None:
                self._stream.write(data.decode(errors="replace"))
                self._stream.flush()
            return len(data)
        try:
            return os.write(self.descriptor, data)
        # Somebody else has made the descriptor one that never waits.
        except BlockingIOError:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLOUT)
            poll.poll()
            return 0


class LinePrinter:
    """Print the lines of processes, each with the number of its process in front.

    Threads write them: whoever waits in `| less` must not keep signals from the processes, nor the
    end of one from being noticed. `is_news` is set when one has ended or a stream has failed.
    """

    def __init__(self) -> None:
        self.is_news = threading.Event()
        self._threads: list[threading.Thread] = []
        self._writer: threading.Thread | None = None
        out, error = _Output(sys.stdout, "standard output"), _Output(sys.stderr, "standard error")
        # Lines stay whole where both are one terminal or file.
        with contextlib.suppress(OSError, TypeError):
            if os.path.sameopenfile(out.descriptor, error.descriptor):  # type: ignore[arg-type]
                error = out
        self._outputs = (out, error)

    @property
    def failure(self) -> tuple[str, OSError] | None:
        """The stream that cannot be written, and why: its lines are dropped; None without one."""
        failures = ((output.name, output.error) for output in self._outputs if output.error)
        return next(failures, None)

    def print_lines(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        output = self._outputs[is_error]
        output.write(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))
        if output.error is not None:
            self.is_news.set()

    def say(self, text: str) -> None:
        """Print a line of the launcher's own, on stderr; does not wait for that."""
        line, before = f"penstock launch: {text}\n".encode(errors="replace"), self._writer

        def write() -> None:
            # A lock lets any of those in that wait for it.
            if before is not None:
                before.join()
            self._outputs[True].write(line)

        self._writer = self.start(write)

    def start(self, function: Callable[[], None]) -> threading.Thread:
        """Have a thread do something that `drain` waits for."""
        thread = threading.Thread(target=function, name="penstock launch", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()
        return thread

    def drain(self, received: Sized, max_secs: float) -> None:
        """Wait until all is written, unless seconds are over or a signal is received."""
        end = time.monotonic() + max_secs
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < end and not received:
                thread.join(TICK_SECS)


class LineAssembler:
    """Cut a stream of bytes into lines.

    Text behind a carriage return replaces what stood before it, as in a terminal: of a progress bar
    its last state is the line. What stands without a newline for 5 s becomes a line as well, so
    that a long bar, or the last words of a process that hangs, can be read; and so does what is
    longer than a MiB, which bounds the memory.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._pending_since = 0.0
        # Whether a part of the line under way was given out: its newline alone is no empty line.
        self._is_begun = False

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that end in these bytes, without their ends."""
        if not self._pending or b"\n" in data:
            self._pending_since = now
        *ended, self._pending = map(_drop_replaced, (self._pending + data).split(b"\n"))
        lines = []
        for line in ended:
            if line.rstrip(b"\r") or not self._is_begun:
                lines.append(line.rstrip(b"\r"))
            self._is_begun = False
        return lines

    def show(self, now: float, *, is_last: bool = False) -> list[bytes]:
        """Return what has stood without a newline for long, or is the last; one line, or none."""
        is_due = is_last or now - self._pending_since >= _SHOWN_AFTER_SECS
        if not self._pending or not (is_due or len(self._pending) > _MAX_LINE_BYTES):
            return []
        self._pending_since = now
        line, self._pending = self._pending.rstrip(b"\r"), b""
        # Blanks are what a progress bar clears its line with.
        if not line.strip():
            return []
        self._is_begun = True
        return [line]


def _drop_replaced(text: bytes) -> bytes:
    # The last carriage return may belong to a newline that is still to come.
    return text[text.rfind(b"\r", 0, len(text.rstrip(b"\r"))) + 1 :]


class ChildProcess:
    """A process in a process group of its own, whose output is printed line by line.

    Signals that ask it to end go to the process where it `hears_alone`, or to its group. Its `code`
    is that of `subprocess`, None while it runs. It `is_killed` if `kill` was what ended it,
    `is_asked` if it was asked to, and `is_over` with what it left behind.
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
        self.last_lines: deque[bytes] = deque(maxlen=_NUM_LAST_LINES)
        try:
            pipes = (self._process.stdout, self._process.stderr)
            copies = [functools.partial(self._copy, pipe) for pipe in pipes if pipe is not None]
            self._copies = list(map(printer.start, copies))
            # Elsewhere its end is looked for. One that cannot be killed is not waited for.
            if hasattr(os, "waitid"):
                threading.Thread(
                    target=self._tell_of_end, name="penstock launch end", daemon=True
                ).start()
        except RuntimeError as error:  # no room for a thread
            self.kill()
            self.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

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

    def look(self) -> None:
        """Notice its end, and then that of what it has left behind."""
        now = time.monotonic()
        if self.code is None:
            self.code = self._process.poll()
            if self.code is None and now > self._killed_at + _UNKILLABLE_SECS:
                self._printer.say(f"process {self.rank} ({self.pid}) cannot be killed: it is left.")
                self.code = -signal.SIGKILL
            if self.code is not None:
                self._ended_at = now
        if self.code is None or self.is_over:
            return
        # Its last lines may come from what it left behind.
        is_copied = not any(thread.is_alive() for thread in self._copies)
        if is_copied or now > self._ended_at + _LEFTOVER_SECS:
            self._signal_group(signal.SIGKILL)
        # Whoever still holds a pipe has left the group, or nobody reads what we print.
        self.is_over = is_copied or now > self._ended_at + 2 * _LEFTOVER_SECS

    def ask_to_end(self, number: int) -> None:
        """Send a signal on which it may save what it has."""
        if self.code is not None:
            return
        self.is_asked = True
        if self._hears_alone:
            self._process.send_signal(number)
        else:
            self._signal_group(number)

    def kill(self) -> None:
        if self.code is None:
            self.is_killed = self.is_asked = True
            self._killed_at = min(time.monotonic(), self._killed_at)
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; of one that runs, after `kill`."""
        if self.code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.code = self._process.wait(_LEFTOVER_SECS)
        self.is_over = True

    def _tell_of_end(self) -> None:
        # `look` waits for it: until then its number, which signals go to, is nobody else's.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._printer.is_news.set()

    def _copy(self, pipe: IO[bytes]) -> None:
        """Print what comes through a pipe, as long as somebody of the group may write to it."""
        is_error = pipe is self._process.stderr
        lines, poll, num_left = LineAssembler(), select.poll(), _READ_BYTES
        poll.register(pipe, select.POLLIN)
        with pipe:
            while num_left > 0:
                has_come = poll.poll(1000 * TICK_SECS)
                data = os.read(pipe.fileno(), _READ_BYTES) if has_come else b""
                if not data and (has_come or self.is_over):
                    break
                # A pipe holds no more than this of those that are gone.
                num_left -= len(data) * self.is_over
                now = time.monotonic()
                self._print([*lines.feed(data, now), *lines.show(now)], is_error)
        self._print(lines.show(time.monotonic(), is_last=True), is_error)
        self._printer.is_news.set()

    def _print(self, lines: Sequence[bytes], is_error: bool) -> None:
        if is_error:
            self.last_lines.extend(line for line in lines if line.strip())
        if lines:
            self._printer.print_lines(self.rank, lines, is_error=is_error)

    def _signal_group(self, number: int) -> None:
        # All of the group may have ended by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def find_error(lines: Iterable[bytes]) -> str:
    """Return the last line that reads as an exception, or as a failure of a command of ours."""
    for line in reversed([*lines]):
        text = _CONTROLS.sub("", line[: 8 * _MAX_ERROR_LENGTH].decode(errors="replace"))
        if _MESSAGE.match(text):
            is_long = len(text) > _MAX_ERROR_LENGTH
            return f"{text[: _MAX_ERROR_LENGTH - 3]}..." if is_long else text
    return ""

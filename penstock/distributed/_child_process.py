"""One process of a group: its start, its lines, its end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

from penstock.distributed._line_assembler import LineAssembler
from penstock.distributed._line_printer import LinePrinter
from penstock.distributed._parent_death import begin_with
from penstock.distributed.python_scripts import is_python

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


class ChildProcess:
    """A process in a process group of its own, whose output is printed line by line.

    Signals that ask it to end go to the process itself where it is Python: its own workers are
    still needed for the checkpoint. Another program, such as a shell, would often keep them to
    itself, so its whole group gets them.

    Attributes:
      code: its exit code as `subprocess` has it; None while it runs.
      is_killed: whether `kill` was what ended it.
      is_asked: whether it ended after it was asked to, or killed: not by itself.
      is_over: whether it has ended, and all that it has printed is queued.
    """

    def __init__(
        self, rank: int, words: Sequence[str], environment: Mapping[str, str], printer: LinePrinter
    ) -> None:
        self.rank = rank
        self.code: int | None = None
        self.is_killed = self.is_asked = self.is_over = False
        self._printer = printer
        self._is_python = is_python(shutil.which(words[0]) or words[0])
        self._process = subprocess.Popen(
            begin_with(words),
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
        if self._is_python:
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

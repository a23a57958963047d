"""A group of processes from its start to its end: what one of them does decides about all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from penstock.distributed._child_process import ChildProcess
from penstock.distributed._line_printer import LinePrinter
from penstock.distributed.exit_codes import AGAIN, describe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """How long processes that should end are waited for.

    Arguments:
      grace_secs: after a signal; they save what they have.
      linger_secs: after one has failed; the others are told and end by themselves.
    """

    grace_secs: float
    linger_secs: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a group ended.

    Arguments:
      code: that of the process that failed first, as `subprocess` has it; 0 where none did.
      text: what became of that process, for a person; empty where none failed.
      secs: from the start to that failure, or to the end.
      signal: the one that ended the group, None where it ended by itself.
      killed: the processes that did not end in time and were killed.
    """

    code: int = 0
    text: str = ""
    secs: float = 0.0
    signal: int | None = None
    killed: tuple[int, ...] = ()


def supervise(
    children: Sequence[ChildProcess],
    printer: LinePrinter,
    received: deque[int],
    patience: Patience,
    first_failure: Path,
) -> Outcome:
    """Watch processes until all have ended.

    Arguments:
      received: signals to the launcher, as they come.
      first_failure: a link whose text says whose failure was the first, where they know.
    """
    started_at = time.monotonic()
    ending = _Ending(children, patience)
    first: ChildProcess | None = None
    failed_at = math.inf
    while not all(child.is_over for child in children):
        printer.wait([each for child in children for each in child.awaited])
        now = time.monotonic()
        for child in children:
            child.step(now)
        printer.flush()
        failed = [child for child in children if child.code]
        if failed and first is None:
            first, failed_at = min(failed, key=_is_consequence), now
            ending.on_failure(now)
        while received:
            ending.on_signal(received.popleft(), now)
        if printer.failure is not None and ending.signal is None:
            # Nobody would read what they go on to print.
            ending.on_signal(signal.SIGTERM, now)
        ending.act(now)
    # A process that the launcher killed in the end did not fail by itself.
    is_own = first is not None and not (first.is_killed and ending.signal is not None)
    code, text = -(ending.signal or 0), ""
    if first is not None and is_own:
        code, text = _explain(first, children, first_failure)
    return Outcome(
        code=code,
        text=text,
        secs=min(failed_at, time.monotonic()) - started_at,
        signal=ending.signal,
        killed=tuple(child.rank for child in children if child.is_killed),
    )


class _Ending:
    """What is done about processes that should end, and when.

    Attributes:
      signal: the one that was passed on; None where there was none.
    """

    def __init__(self, children: Sequence[ChildProcess], patience: Patience) -> None:
        self.signal: int | None = None
        self._children = children
        self._patience = patience
        self._term_at = self._kill_at = math.inf

    def on_failure(self, now: float) -> None:
        """Give the others the time to end by themselves."""
        # Those that save after a signal keep their grace.
        if self.signal is None:
            self._term_at = now + self._patience.linger_secs
            self._kill_at = self._term_at + self._patience.grace_secs

    def on_signal(self, number: int, now: float) -> None:
        """Pass a signal on, once; Ctrl-C after that ends everything at once."""
        if self.signal is None:
            self.signal, self._term_at = number, math.inf
            self._kill_at = min(self._kill_at, now + self._patience.grace_secs)
            self._ask(number)
        elif number == signal.SIGINT:
            self._kill_at = now

    def act(self, now: float) -> None:
        """Do what it is time for."""
        if now >= self._term_at:
            self._term_at = math.inf
            self._ask(signal.SIGTERM)
            for child in self._children:
                if child.is_stopped:
                    child.kill(now)
        if now >= self._kill_at:
            for child in self._children:
                child.kill(now)

    def _ask(self, number: int) -> None:
        for child in self._children:
            child.ask_to_end(number)


def _is_consequence(child: ChildProcess) -> tuple[bool, int]:
    """Order processes that failed at once: the likely cause, such as a signal, comes first."""
    code = child.code or 0
    # Both are what a process does when it has lost another.
    return code in (AGAIN, -signal.SIGABRT), code


def _explain(
    first: ChildProcess, children: Sequence[ChildProcess], first_failure: Path
) -> tuple[int, str]:
    """Return the code and the words for the process that failed first.

    Arguments:
      first: the one that ended first, which often has lost the one that failed.
    """
    said = {"index": first.rank, "what": ""}
    # Without penstock nobody writes it, nor where all are killed at once.
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(os.readlink(first_failure))
    child = children[said["index"]]
    if child.is_asked and said["what"]:
        # It stood still, and its end says nothing.
        return first.code or 0, said["what"]
    if not child.code:
        # Nothing that goes wrong by itself, so it is not started again.
        return 1, f"{_describe(child)} in the middle of the run, as by os._exit(0)"
    return child.code, _describe(child)


def _describe(child: ChildProcess) -> str:
    code = child.code or 0
    error = child.find_error() if code > 0 else ""
    return f"process {child.rank} {describe(code)}" + (f" ({error})" if error else "")

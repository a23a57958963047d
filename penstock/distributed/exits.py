"""How a process ends that others wait for: at once, its reason said, and never in a barrier."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn

from penstock._errors import PeerError

FIRST_FAILURE = "PENSTOCK_FIRST_FAILURE"
"""The variable with the path of a link whose text tells a launcher whose failure was the first."""

# What errors of collectives say, in small letters, whose partner has gone.
_BROKEN = ("gloo", "connection closed by peer", "connection reset", "unavailable", "nccl")


class _LastError:
    error: BaseException | None = None


def note_last(error: BaseException | None) -> None:
    """Take an exception for the one that ends this script; None where the script goes on."""
    is_good_end = isinstance(error, SystemExit) and not error.code
    _LastError.error = None if is_good_end else error


def install(end: Callable[[BaseException | None], int | None]) -> None:
    """Have `end` decide how this process ends, by the exception that ended the script, if one did.

    It returns an exit code, or None for Python's own.
    """
    previous, exit_script, owner = sys.excepthook, sys.exit, os.getpid()

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        note_last(error)
        ignore_sigterm()
        # Where another process has failed, that one has the traceback, and `end` says who it is.
        if not isinstance(error, PeerError) or error.is_of_this_call:
            previous(kind, error, traceback)

    def note_and_exit(status: Any = None, /) -> NoReturn:
        # Python calls no hook for it. Another thread ends itself alone.
        if threading.current_thread() is threading.main_thread():
            note_last(SystemExit(status))
        exit_script(status)

    def at_exit() -> None:
        error = _LastError.error
        # A fork is no process of the group; JAX's barrier would wait for it without end.
        if os.getpid() != owner:
            leave(0 if error is None else code_of(error))
        try:
            code = end(error)
        # Who does not wait for the others any more does not wait for them in JAX's barrier.
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        if code is not None:
            leave(code)

    sys.excepthook, sys.exit = hook, note_and_exit
    # Runs before what was registered earlier: JAX's barrier, in which it would wait for minutes.
    atexit.register(at_exit)


def ignore_sigterm() -> None:
    """Keep the exit code of a process that is ending by an error.

    srun sends the others SIGTERM as soon as one has failed, and what ends by it has code 143, which
    asks to be started again.
    """
    # Outside the main thread it cannot be set.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def report_first(failure: Mapping[str, Any] | None) -> None:
    """Tell the launcher, where it asks, whose failure ends this process; the first report counts.

    Who fails is not who ends first: process 0 waits for the others, which end because of it.
    """
    path = os.environ.get(FIRST_FAILURE)
    if path and failure is not None:
        text = json.dumps({"index": failure["index"], "what": failure["what"][:200]})
        # A link is whole or not there, one alone can make it, and it takes no room on a full disk.
        with contextlib.suppress(OSError):
            os.symlink(text, path)


def leave(code: int) -> None:
    """End this process at once, with what was written shown."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def say(sentence: str) -> None:
    """Write a line to stderr, in any thread, whatever became of Python's streams."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"penstock: {sentence}\n")
        sys.stderr.flush()


def describe_error(error: BaseException) -> str:
    """Return what an exception made a process do, such as 'failed with ValueError: no file'."""
    # What it follows from is known to all.
    if isinstance(error, PeerError):
        return "could not go on"
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else repr(error.code)})"
    # The rest of a long text is where it was raised.
    text = str(error).partition("\n")[0]
    return f"failed with {type(error).__name__}{': ' if text else ''}{text}"


def code_of(error: BaseException) -> int:
    """Return the exit code that an exception ends a process with, and with it the others."""
    if isinstance(error, PeerError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code:
        return error.code
    return 1


def may_follow_from_a_loss(error: BaseException) -> bool:
    """Return whether an exception looks like a collective whose partner has gone."""
    text = str(error).lower()
    return isinstance(error, (ValueError, RuntimeError)) and any(word in text for word in _BROKEN)


def dump_stacks(header: str) -> None:
    """Write the stacks of all threads to stderr."""
    say(header)
    # The descriptor itself: a stream that a test or a notebook has put in its place has none.
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)

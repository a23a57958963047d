"""Failures as one readable line, and the exit status that goes with each."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable

from penstock._errors import FolderInUseError, NonFiniteError, UnknownNameError
from penstock._text_tables import find_columns, wrap_words
from penstock.commands._checks import UsageError
from penstock.commands._wording import say_in_flags, shorten

# Most errors of ours are ValueErrors.
_KNOWN = (
    OSError,
    ValueError,
    FolderInUseError,
    UnknownNameError,
    NonFiniteError,
    ModuleNotFoundError,
    MemoryError,
)
_REMEDIES = {
    errno.ENOSPC: " Make room, or write to another disk.",
    errno.EDQUOT: " Make room, or write where you have more of it.",
    errno.EFBIG: " Allow larger files with ulimit -f, or write to another disk.",
    errno.EEXIST: " It is a file, expected a folder. Name another path.",
    errno.ENOTDIR: " A part of it is a file, expected folders. Name another path.",
}
TRACEBACK_VARIABLE = "PENSTOCK_TRACEBACK"


def run_command(
    name: str,
    command: Callable[[], None],
    *,
    usage_errors: tuple[type[Exception], ...] = (),
) -> int:
    """Run a command; return its exit status.

    A failure that a person can mend is one line on stderr. With `PENSTOCK_TRACEBACK=1` in the
    environment it keeps its traceback; a bug always does.

    Arguments:
      usage_errors: what the command raises where it was called wrongly, beside `UsageError`.

    Returns:
      0 when all went well, 1 when it failed, 2 when it was called wrongly.
    """
    try:
        command()
    # An OSError too, but nobody is left to read a line about it: `main` ends quietly.
    except BrokenPipeError:
        raise
    except (UsageError, *usage_errors, *_KNOWN) as error:
        is_usage = isinstance(error, (UsageError, *usage_errors))
        if os.environ.get(TRACEBACK_VARIABLE) == "1" and not is_usage:
            raise
        text = say_in_flags(name, one_line(error))
        # One line; a terminal that is narrower would break it in the middle of a word.
        columns = find_columns(sys.stderr)
        print(wrap_words(f"penstock {name}: {text}", columns, "  "), file=sys.stderr)
        return 2 if is_usage else 1
    return 0


def one_line(error: BaseException) -> str:
    r"""Return an error's message in a line; what was noted with it as well.

    >>> one_line(ValueError("does not fit:\n  missing: a\n  missing: b"))
    'does not fit: missing: a; missing: b'
    """
    # Its own text begins with `[Errno 28]`.
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        where = f" {error.filename!r}" if error.filename is not None else ""
        return f"{error.strerror}:{where}.{_REMEDIES.get(error.errno, '')}".replace(":.", ".")
    # A list is by lines, or between semicolons.
    lines = shorten([each.strip() for each in re.split(r"\n|; ", str(error)) if each.strip()])
    text = ""
    for line in lines:
        text += line if not text else f" {line}" if text.endswith((":", ".")) else f"; {line}"
    # Not those of JAX, nor of where in the code it was: they are for a traceback.
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("in ")]
    text += "".join(f" ({note})" for note in notes)
    # A sentence that ended in a message's last word and again after it.
    return re.sub(r"(?<!\.)\.\.(?=\s|$)", ".", text) or type(error).__name__

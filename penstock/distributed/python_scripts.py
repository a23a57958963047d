"""Which programs are Python."""

from __future__ import annotations

import contextlib
import os


def is_python_script(path: str | os.PathLike[str]) -> bool:
    """Say whether the first line of a file asks for a Python interpreter."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.readline(200)
        return first.startswith(b"#!") and b"python" in first
    return False


def is_python(program: str) -> bool:
    """Say whether a program is a Python interpreter, by its name, or a Python script.

    >>> is_python("/usr/bin/python3"), is_python("/bin/sh")
    (True, False)
    """
    return os.path.basename(program).startswith("python") or is_python_script(program)

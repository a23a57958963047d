"""The secret of a run: who knows it may take the place of one of its processes.

A launcher hands it to every process, in the environment variable PENSTOCK_SECRET or in the file
that PENSTOCK_SECRET_FILE names. It never travels: what does is made from it, for one purpose.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

VARIABLE, FILE_VARIABLE = "PENSTOCK_SECRET", "PENSTOCK_SECRET_FILE"


def make_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a variable with a new secret, for a launcher; none where the environment has one."""
    has_one = environ.get(VARIABLE) or environ.get(FILE_VARIABLE)
    return {} if has_one else {VARIABLE: secrets.token_hex(16)}


def read(environ: Mapping[str, str]) -> str:
    """Return the secret that this process was given, "" where it was given none.

    PermissionError and ValueError say that its file can be read by others, or is empty.
    """
    path = environ.get(FILE_VARIABLE, "")
    if environ.get(VARIABLE) or not path:
        return environ.get(VARIABLE, "")
    with Path(path).open() as file:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        text = file.read().strip()
    if mode & 0o077:
        raise PermissionError(
            f"{FILE_VARIABLE} got the mode {mode:o} of {path}, expected 600. Whoever knows the "
            f"secret may take the place of a process. Run chmod 600 {path}."
        )
    if not text:
        raise ValueError(
            f"{FILE_VARIABLE} got the empty file {path}, expected a secret. Without one, whoever "
            f"reaches process 0 may take a process's place. Run openssl rand -hex 16 > {path}."
        )
    return text


def prove(secret: str, purpose: str) -> str:
    """Return what only a process that knows the secret can say, for one purpose."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def is_proof(proof: object, secret: str, purpose: str) -> bool:
    """Return whether somebody has proved that it knows the secret."""
    # In constant time, and bytes: text with an accent would be an exception.
    return hmac.compare_digest(str(proof).encode(), prove(secret, purpose).encode())

"""The folder of compiled programs, which JAX keeps and reads."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

from penstock._files import cache_folder, expand_path

CHOICE = "PENSTOCK_COMPILE_CACHE"
"""The environment variable that names the folder for commands; `off` for none."""

FOLDER = "JAX_COMPILATION_CACHE_DIR"

LEAST_SECS = 0.1
"""Programs that compile faster are compiled again: reading one takes about 20 ms."""

_LEAST_SECS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def find_folder() -> Path | None:
    """Return the folder of compiled programs; None where there is to be none."""
    chosen = os.environ.get(CHOICE)
    if chosen == "off":
        return None
    return expand_path(chosen) if chosen else cache_folder() / "compiled"


def use_in_commands() -> None:
    """Have JAX keep what it compiles, when it is imported later; what the user has set holds.

    A folder that cannot be written is left out, since a command needs none; one that was named is
    told of.
    """
    folder = find_folder()
    if folder is None or FOLDER in os.environ:
        return
    try:
        try_folder(folder)
    except OSError as error:
        if os.environ.get(CHOICE):
            print(
                f"penstock: {CHOICE} got {str(folder)!r}, expected a folder that can be written "
                f"({error.strerror}). What is compiled is not kept.",
                file=sys.stderr,
            )
        return
    os.environ[FOLDER] = str(folder)
    os.environ.setdefault(_LEAST_SECS, str(LEAST_SECS))


def use_compile_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a folder, so that another start of the script compiles nothing.

    JAX finds a program by its text, its options, its devices and the versions. Several processes
    and scripts may share a folder; of a group, process 0 writes. `penstock cache` lists what is
    kept and clears it. Call it before anything compiles. Commands do so by themselves, unless
    `PENSTOCK_COMPILE_CACHE=off`.

    Arguments:
      folder: by default JAX's own `jax_compilation_cache_dir` if it is set, else the folder of
        commands.

    Returns:
      The folder.

    Raises:
      OSError: nothing can be written there.

    >>> import tempfile
    >>> folder = use_compile_cache(tempfile.mkdtemp())
    >>> folder.is_dir()
    True
    """
    import jax

    config: Any = jax.config
    folder = folder or config.jax_compilation_cache_dir or find_folder()
    # The line asks for one, also where commands are told to do without.
    path = expand_path(folder or cache_folder() / "compiled").absolute()
    try:
        try_folder(path)
    except OSError as error:
        raise type(error)(
            f"use_compile_cache got {str(path)!r}, expected a folder that can be written "
            f"({error.strerror}). Name another, or leave the call out."
        ) from error
    config.update("jax_compilation_cache_dir", str(path))
    if _LEAST_SECS not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECS)
    return path


def list_programs(folder: Path | None) -> list[Path]:
    """Return the files of compiled programs; none without a folder."""
    return [] if folder is None else sorted(folder.glob("*-cache"))


def try_folder(folder: Path) -> None:
    """Make a folder, and raise where nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / f".trial-{uuid.uuid4().hex}"
    trial.touch()
    trial.unlink()

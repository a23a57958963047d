"""Configuration files: flags in YAML or JSON, by section or without."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock._errors import nearest
from penstock.commands._flags._checks import UsageError

FILE = "config.json"


def read_config(path: str | os.PathLike[str], known: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags of a file as words of the command line; None means the default.

    Arguments:
      known: the names of flags there are.

    Raises:
      UsageError: no such file, no YAML or JSON, or no such flag.
    """
    flags = _flat(_contents(Path(path)))
    for name in flags:
        if name not in known:
            raise UsageError(
                f"{os.fspath(path)!r} got the flag {name!r}, expected flags of the command; "
                f"--help lists them.{nearest(name, known)}"
            )
    return {name: _word(value) for name, value in flags.items() if value is not None}


def _contents(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--config got {str(path)!r}, expected a file that can be read ({error.strerror})."
        ) from error
    try:
        loaded = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise UsageError(f"--config got {str(path)!r}, expected YAML or JSON: {what}.") from error
    if not isinstance(loaded, Mapping):
        raise UsageError(f"--config got {str(path)!r}, expected flags by name in it.")
    return loaded


def _flat(loaded: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in loaded.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return repr(value) if isinstance(value, bool | float) else str(value)


def write_config(folder: Path, flags: Any) -> Path:
    """Write flags to a folder as `config.json`, by section; the file appears whole."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = dataclasses.asdict(flags) | {"config": None}
    temporary = folder / f".{FILE}.{os.getpid()}.tmp"
    try:
        temporary.write_text(json.dumps(sections, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, folder / FILE)
    finally:
        temporary.unlink(missing_ok=True)
    return folder / FILE

"""Configuration files: flags in YAML or JSON, by section or without sections."""

from __future__ import annotations

import dataclasses
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from types import NoneType

from penstock._errors import nearest
from penstock._files import replacing
from penstock.commands._argument_parser import Dataclass, Flag, FlagValue
from penstock.commands._checks import UsageError


def read_config(path: str | os.PathLike[str], flags: Mapping[str, Flag]) -> dict[str, FlagValue]:
    """Return the values in a file by flag; null means the default, and is left out.

    Raises:
      UsageError: no such file, no YAML or JSON, no such flag, or a wrong value.
    """
    values: dict[str, FlagValue] = {}
    for name, value in flatten(_load(Path(path))).items():
        if name not in flags:
            raise UsageError(
                f"{os.fspath(path)!r} got the flag {name!r}, expected flags of the command; "
                f"--help lists them.{nearest(name, flags)}"
            )
        if value is not None:
            try:
                values[name] = read_value(flags[name], value)
            except ArgumentTypeError as error:
                raise UsageError(f"{os.fspath(path)!r}: {name} {error}") from error
    return values


def read_value(flag: Flag, value: object) -> FlagValue:
    """Return a flag's value that is JSON's or YAML's in a file.

    Raises:
      ArgumentTypeError: the flag cannot have it.
    """
    if value is None:
        return None if NoneType in flag.kinds else flag.default
    return flag.read(_write_value(value))


def flatten(sections: Mapping[str, object]) -> dict[str, object]:
    """Return what is in a mapping and in the mappings in it."""
    flat: dict[str, object] = {}
    for name, value in sections.items():
        flat |= flatten(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def _load(path: Path) -> Mapping[str, object]:
    import yaml

    where = f"the flags' file got {str(path)!r}, expected"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where} a file that can be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} YAML or JSON. It is not a text file.") from error
    try:
        # JSON by its own parser: YAML reads `1e-3`, which JSON may hold, as text.
        loaded = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise UsageError(f"{where} YAML or JSON: {error.problem}{line}. Is it whole?") from error
    except (ValueError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise UsageError(f"{where} YAML or JSON: {what}. Is it whole?") from error
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{where} flags by name in it, such as `model_name: lenet`.")
    return loaded


def write_config(path: Path, flags: Dataclass) -> None:
    """Write flags to a file by section, as JSON; it appears whole."""
    sections = to_json(flags) | {"config": None}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(sections, indent=1) + "\n", encoding="utf-8")


def to_json(flags: Dataclass) -> dict[str, object]:
    """Return flags by section, with values that JSON knows."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = to_json(value)
        # As text: a mapping in the file would be read as a section.
        elif isinstance(value, Mapping):
            value = _write_value(value) or None
        values[field.name] = value
    return values


def _write_value(value: object) -> str:
    """Return a value as a word of the command line has it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_write_value, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_write_value(each)}" for name, each in value.items())
    # `repr` of a float reads back as the same float.
    return repr(value) if isinstance(value, bool | float) else str(value)

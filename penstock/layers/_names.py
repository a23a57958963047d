"""Names of layers and parameters: what may be one, and what is found under one."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from penstock._errors import ProgramError, listed, nearest


def find(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the entry of a nested dict at `path`, or None."""
    node: Any = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node


def path_hash(path: tuple[str, ...]) -> int:
    """Return a number that depends on the path alone, the same in every process."""
    return zlib.crc32("/".join(path).encode())


def check_name(owner: str, name: str) -> None:
    """Raise unless `name` can stand in a parameter path."""
    if not isinstance(name, str) or not name or "/" in name:
        raise ProgramError(
            f"{owner} got the name {name!r}, expected a non-empty string without '/'. Slashes "
            "separate scopes. Use layers.scope for a nested name."
        )


def check_choice(owner: str, argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        raise ProgramError(
            f"{owner} got {argument}={value!r}, expected one of {listed(choices)}."
            + nearest(str(value), choices)
        )

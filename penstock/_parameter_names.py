"""Names of parameters: paths inside penstock; with slashes for people and in files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Path: TypeAlias = tuple[str, ...]
"""A name as its scopes, layer and leaf: `("generator", "fc_0", "w")`."""

Key: TypeAlias = tuple[str, Path]
"""The collection of an entry, `params` or `batch_stats`, and its path in it."""

Nested: TypeAlias = "Mapping[str, T | Nested[T]]"
"""Dicts nested by scope, layer and leaf, of arrays or of what is known of each."""


def spell(path: Sequence[str]) -> str:
    """Return a path as people and files write it.

    >>> spell(("generator", "fc_0", "w"))
    'generator/fc_0/w'
    """
    return "/".join(path)


def parse(name: str) -> Path:
    """Return the path that a name stands for.

    >>> parse("generator/fc_0/w")
    ('generator', 'fc_0', 'w')
    """
    return tuple(name.split("/"))


def hash_path(path: Path) -> int:
    """Return a number that depends on the path alone, the same in every process."""
    # Not `hash`, which is salted by process: several processes must draw alike.
    return zlib.crc32(spell(path).encode())

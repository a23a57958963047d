"""Names of parameters, paths inside penstock and slashes for people; trees of them, taken apart."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from flax import traverse_util

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


def flatten(tree: Nested[T]) -> dict[Path, T]:
    """Return a nested dict as a flat one, keyed by path."""
    return traverse_util.flatten_dict(dict(tree))  # pyright: ignore[reportReturnType]


def nest(entries: Mapping[Path, T]) -> Nested[T]:
    """Return a flat dict keyed by path as a nested one."""
    return traverse_util.unflatten_dict(dict(entries))


def split(tree: Nested[T], ours: frozenset[Path]) -> tuple[Nested[T], dict[Path, T]]:
    """Return the nested dict of the entries at some paths, and the others, flat."""
    others = flatten(tree)
    if others.keys() <= ours:
        return tree, {}
    taken = {path: others.pop(path) for path in list(others) if path in ours}
    return nest(taken), others


def merge(tree: Nested[T], others: Mapping[Path, T]) -> Nested[T]:
    """Return the whole tree from the two parts that `split` made."""
    return nest({**flatten(tree), **others}) if others else tree


def list_top_levels(paths: Iterable[Sequence[str]]) -> list[str]:
    """Return the first components of paths, sorted, each once."""
    return sorted({path[0] for path in paths})


def list_prefixes(paths: Iterable[Path]) -> list[str]:
    """Return every name that stands for a part of a tree: scopes, layers and parameters."""
    return sorted({spell(path[:length]) for path in paths for length in range(1, len(path) + 1)})

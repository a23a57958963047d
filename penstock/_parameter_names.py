"""Names of parameters, paths inside penstock and slashes for people; trees of them, taken apart."""

from __future__ import annotations

import dataclasses
import fnmatch
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from flax import traverse_util

from penstock._errors import ParameterError, UnknownNameError, listed, nearest

T = TypeVar("T")

Path: TypeAlias = tuple[str, ...]
"""A name as its scopes, layer and leaf: `("generator", "fc_0", "w")`."""

Key: TypeAlias = tuple[str, Path]
"""The collection of an entry, `params` or `batch_stats`, and its path in it."""

Nested: TypeAlias = "Mapping[str, T | Nested[T]]"
"""Dicts nested by scope, layer and leaf, of arrays or of what is known of each."""


def spell(path: Sequence[str]) -> str:
    """Return a path as people and files write it."""
    return "/".join(path)


def parse(name: str) -> Path:
    """Return the path that a name stands for."""
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


def flatten_variables(variables: Mapping[str, Nested[object]]) -> dict[Key, Any]:
    """Return variables as a flat dict by collection and path."""
    return {(c, tuple(path)): value for (c, *path), value in flatten(variables).items()}


def nest_variables(entries: Mapping[Key, T]) -> dict[str, Nested[T]]:
    """Return what `flatten_variables` was given."""
    nested: Any = nest(
        {(collection, *path): value for (collection, path), value in entries.items()}
    )
    # Both are there in any case: a network without batch norm has empty statistics.
    return {"params": {}, "batch_stats": {}, **nested}


def split(tree: Nested[T], ours: frozenset[Path]) -> tuple[Nested[T], dict[Path, T]]:
    """Return the nested dict of the entries at some paths, and the others, flat."""
    theirs = flatten(tree)
    if theirs.keys() <= ours:
        return tree, {}
    taken = {path: theirs.pop(path) for path in list(theirs) if path in ours}
    return nest(taken), theirs


def merge(tree: Nested[T], theirs: Mapping[Path, T]) -> Nested[T]:
    """Return the whole tree from the two parts that `split` made."""
    return nest({**flatten(tree), **theirs}) if theirs else tree


def list_prefixes(paths: Iterable[Path]) -> list[str]:
    """Return every name that stands for a part of a tree: scopes, layers and parameters."""
    return sorted({spell(path[:length]) for path in paths for length in range(1, len(path) + 1)})


Patterns = str | Sequence[str] | None
"""Names such as `"backbone"`, which takes what lies under it too, or globs such as `"*/w"`."""

Rename = Mapping[str, str] | Callable[[str], str] | None
"""Beginnings of names and what stands in their place, or a function of a name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The entries that are loaded: those that `include` matches and `exclude` does not.

    Both match the program's names: those of a file after `rename`.

    >>> Selection(include="backbone", exclude="*/b").takes("backbone/fc_0/w")
    True
    """

    include: Patterns = None
    exclude: Patterns = None
    rename: Rename = None

    @property
    def is_all(self) -> bool:
        """Whether everything is loaded under its own name."""
        return self.include is None and self.exclude is None and self.rename is None

    def takes(self, name: str) -> bool:
        """Return whether an entry of the program is to be loaded."""
        is_included = self.include is None or any(_matches(name, p) for p in _list(self.include))
        return is_included and not any(_matches(name, p) for p in _list(self.exclude))

    def rename_entries(self, entries: Mapping[Key, T]) -> dict[Key, T]:
        """Return a file's entries under the program's names."""
        names = [spell(path) for _, path in entries]
        if isinstance(self.rename, Mapping):
            for old in self.rename:
                if not any(_is_under(name, old) for name in names):
                    raise UnknownNameError(
                        f"rename got {old!r}, expected the beginning of a name in the file, such "
                        f"as {listed(names[:5])}." + nearest(old, names)
                    )
        renamed: dict[Key, T] = {}
        for (collection, path), value in entries.items():
            key = collection, parse(self._name(spell(path)))
            if key in renamed:
                raise ParameterError(f"rename got two entries for {spell(key[1])!r}, expected one.")
            renamed[key] = value
        return renamed

    def _name(self, name: str) -> str:
        if self.rename is None:
            return name
        if not isinstance(self.rename, Mapping):
            return self.rename(name)
        # The longest first: a replacement inside `encoder/attention` counts before one of
        # `encoder`.
        for old in sorted(self.rename, key=len, reverse=True):
            if _is_under(name, old):
                parts = self.rename[old].strip("/"), name[len(old) :].strip("/")
                return "/".join(filter(None, parts))
        return name

    def select(self, entries: Mapping[Key, T]) -> dict[Key, T]:
        """Return the entries that are to be loaded."""
        return {key: value for key, value in entries.items() if self.takes(spell(key[1]))}

    def check(self, table: Mapping[Key, object]) -> None:
        """Raise unless each pattern matches an entry: a typing error is no choice."""
        check_patterns("include", self.include, table)
        check_patterns("exclude", self.exclude, table)


def check_patterns(argument: str, patterns: Patterns, table: Mapping[Key, object]) -> None:
    """Raise unless each pattern of an argument matches an entry of the program."""
    wanted = _list(patterns)
    names = [spell(path) for _, path in table] if wanted else []
    for pattern in wanted:
        if not any(_matches(name, pattern) for name in names):
            raise UnknownNameError(
                f"{argument} got {pattern!r}, expected a pattern that matches a parameter: "
                f"{listed(names)}.{nearest(pattern, names)}"
            )


def subtract_patterns(
    patterns: Sequence[str], taken: Patterns, table: Mapping[Key, object]
) -> tuple[str, ...]:
    """Return patterns for the entries that `patterns` match and `taken` do not.

    >>> table = {("params", ("a", "w")): 0, ("params", ("a", "b")): 0, ("params", ("c", "w")): 0}
    >>> subtract_patterns(["a", "c"], "*/b", table)
    ('a/w', 'c')
    """
    remaining: list[str] = []
    for pattern in patterns:
        names = [spell(path) for _, path in table if _matches(spell(path), pattern)]
        left = [name for name in names if not any(_matches(name, p) for p in _list(taken))]
        # As people wrote it where it can stay: a network has hundreds of names.
        remaining += [pattern] if left == names else left
    return tuple(remaining)


def _list(patterns: Patterns) -> list[str]:
    return [] if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)


def _matches(name: str, pattern: str) -> bool:
    return _is_under(name, pattern) or fnmatch.fnmatchcase(name, pattern)


def _is_under(name: str, beginning: str) -> bool:
    # Whole parts of a path: `fc_1` is no beginning of `fc_10`.
    return not beginning or name == beginning or name.startswith(beginning.rstrip("/") + "/")

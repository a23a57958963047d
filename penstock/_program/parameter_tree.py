"""Parts of the parameter tree: nested dicts split, merged and initialised by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import traverse_util

from penstock._parameter_names import Nested, Path, hash_path, spell
from penstock._program.requests import ParameterSpec, Params

T = TypeVar("T")

Entries = Mapping[Path, jax.Array]
"""Parameters or statistics, flat: arrays by path."""


def flatten(tree: Nested[T]) -> dict[Path, T]:
    """Return a nested dict as a flat one, keyed by path."""
    return traverse_util.flatten_dict(dict(tree))  # pyright: ignore[reportReturnType]


def nest(entries: Mapping[Path, T]) -> Nested[T]:
    """Return a flat dict keyed by path as a nested one."""
    return traverse_util.unflatten_dict(dict(entries))


def split(tree: Params, ours: frozenset[Path]) -> tuple[Params, dict[Path, jax.Array]]:
    """Return the nested dict of the entries at some paths, and the others, flat."""
    others = flatten(tree)
    if others.keys() <= ours:
        return tree, {}
    taken = {path: others.pop(path) for path in list(others) if path in ours}
    return nest(taken), others


def merge(tree: Params, others: Entries) -> Params:
    """Return the whole tree from the two parts that `split` made."""
    return nest({**flatten(tree), **others}) if others else tree


def initialize(specs: Iterable[ParameterSpec], key: jax.Array) -> dict[str, dict[Path, jax.Array]]:
    """Return initial values by collection and path; each depends on the key and its path alone.

    Parameters of one initialiser and shape are drawn together: the program is as long as there are
    such groups, 35 for the 1,436 entries of NASNet-CIFAR.
    """
    alike: dict[tuple[object, ...], list[ParameterSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.initializer, spec.shape, spec.dtype), []).append(spec)
    values: dict[str, dict[Path, jax.Array]] = {"params": {}, "batch_stats": {}}
    for group in alike.values():
        for spec, value in zip(group, _draw_group(group, key), strict=True):
            values[spec.collection][spec.path] = value
    return values


def _draw_group(group: Sequence[ParameterSpec], key: jax.Array) -> list[jax.Array]:
    """Return initial values of parameters that have the initialiser, shape and dtype in common."""
    spec = group[0]

    def draw(path_hash: jax.Array) -> jax.Array:
        own_key = jax.random.fold_in(key, path_hash)
        return jnp.asarray(spec.initializer(own_key, spec.shape, spec.dtype))

    # By name, not by order: a layer that is added changes no other's initial value.
    hashes = jnp.asarray([hash_path(each.path) for each in group], jnp.uint32)
    # The bits are the same either way.
    values = [draw(hashes[0])] if len(group) == 1 else jax.vmap(draw)(hashes)
    # One stands for the group, whose shapes and dtypes are the same.
    value = values[0]
    if value.shape != spec.shape or value.dtype != spec.dtype:
        raise ValueError(
            f"the initializer of {spec.name!r} returned shape {value.shape} and dtype "
            f"{value.dtype}, expected {spec.shape} and {spec.dtype}. An initializer is called "
            "as initializer(key, shape, dtype)."
        )
    return [values[number] for number in range(len(group))]


def list_top_levels(paths: Iterable[Sequence[str]]) -> list[str]:
    """Return the first components of paths, sorted, each once."""
    return sorted({path[0] for path in paths})


def list_prefixes(paths: Iterable[Path]) -> list[str]:
    """Return every name that stands for a part of a tree: scopes, layers and parameters."""
    return sorted({spell(path[:length]) for path in paths for length in range(1, len(path) + 1)})

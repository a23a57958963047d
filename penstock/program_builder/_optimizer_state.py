"""An optimizer's state as a program keeps it: plain arrays of the same kinds after each update."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RandomKey:
    """A random key of an optimizer's state as plain numbers, which files and copies take."""

    data: jax.Array
    implementation: Any = dataclasses.field(metadata={"static": True})

    @property
    def key(self) -> jax.Array:
        """The key, as `jax.random` takes it."""
        return jax.random.wrap_key_data(self.data, impl=self.implementation)


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_kept(state: T) -> T:
    """Return an optimizer's state as a program keeps it: arrays of strong types alone."""

    def keep(leaf: Any) -> jax.Array | RandomKey:
        # Some optimizers keep Python numbers, which no file and no donation takes.
        leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
        # Neither copies by element nor files take typed keys.
        if _is_key(leaf):
            return RandomKey(jax.random.key_data(leaf), jax.random.key_impl(leaf))
        # The dtype is spelled out: a weak type would become a strong one in the first update, and
        # the step would compile twice.
        return jnp.asarray(leaf, leaf.dtype)

    return jax.tree.map(keep, state)


def as_used(state: T) -> T:
    """Return a kept state as the optimizer made it."""
    is_kept = lambda node: isinstance(node, RandomKey)  # noqa: E731
    return jax.tree.map(lambda x: x.key if is_kept(x) else x, state, is_leaf=is_kept)


def cast_like(state: T, before: object) -> T:
    """Return a state whose floating arrays have the dtypes they had: another would recompile."""
    # `_check_fits` says it, with the paths.
    if jax.tree.structure(state) != jax.tree.structure(before):
        return state

    def cast(new: jax.Array, old: jax.Array) -> jax.Array:
        is_floating = all(jnp.issubdtype(x.dtype, jnp.floating) for x in (new, old))
        return new.astype(old.dtype) if is_floating else new

    return jax.tree.map(cast, state, before)

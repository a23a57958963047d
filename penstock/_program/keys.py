"""Root keys: raw numbers in files and in the state, typed keys in a step."""

from __future__ import annotations

import jax

IMPLEMENTATION = "threefry2x32"
"""What numbers are drawn by, whatever `jax_default_prng_impl` says: what it draws depends on the key
and the shape alone, not on how arrays lie on devices; of `rbg` that is not so."""


def make_root(seed: int) -> jax.Array:
    """Return the raw root key of a seed, uint32."""
    return jax.random.key_data(jax.random.key(seed, impl=IMPLEMENTATION))


def wrap_key(raw: jax.Array) -> jax.Array:
    """Return the typed key of raw numbers."""
    return jax.random.wrap_key_data(raw, impl=IMPLEMENTATION)

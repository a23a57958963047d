"""Root keys: raw numbers in files and in the state, typed keys in a step."""

from __future__ import annotations

import jax

IMPLEMENTATION = "threefry2x32"
"""What numbers are drawn by, whatever `jax_default_prng_impl` says: they depend on the key and the
shape alone, and not, as those of `rbg`, on how arrays lie on devices."""


def make_root(seed: int) -> jax.Array:
    """Return the raw root key of a seed, uint32."""
    return jax.random.key_data(jax.random.key(seed, impl=IMPLEMENTATION))


def wrap_key(raw: jax.Array) -> jax.Array:
    """Return the typed key of raw numbers."""
    return jax.random.wrap_key_data(raw, impl=IMPLEMENTATION)

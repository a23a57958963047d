"""What attention computes once queries, keys and values are there, and which keys a query sees."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program.sequences import Sequence
from penstock.layers.arguments import check_shape

Words = TypeVar("Words", bound=Sequence | jax.Array)
"""A `Sequence` of values `[B, T, ...]`, or an array `[B, T, ...]` whose words are all valid."""


def open_words(layer: str, what: str, x: Sequence | jax.Array) -> tuple[jax.Array, Sequence | None]:
    """Return values `[B, T, D]`, 0 in the padding, where nothing may overflow, and the sequence."""
    sequence = x if isinstance(x, Sequence) else None
    values = jnp.asarray(x.values if isinstance(x, Sequence) else x)
    why = "Each word is a vector. Use layers.embedding for ids."
    check_shape(f"layers.{layer} got {what}", values, why, ["B", "T", "D"])
    if not jnp.issubdtype(values.dtype, jnp.floating):
        got = f"{what} of dtype {values.dtype}"
        raise ProgramError(f"layers.{layer} got {got}, expected floats. {why}")
    return (values if sequence is None else sequence.masked()), sequence


def close_words(like: Words, values: jax.Array) -> Words:
    """Return values as a sequence where `like` is one."""
    return cast(Words, like.with_values(values) if isinstance(like, Sequence) else values)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    lengths: jax.Array | None = None,
    is_causal: bool = False,
    mask: jax.Array | None = None,
    drop: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Return the values that each query's softmax over the keys asks for, `[B, T, N, H]`.

    Heads of keys and values `[B, S, K, H]` serve `N / K` neighbouring heads of queries each. `mask`
    is `[B, T, S]`; `drop` takes weights `[B, N, T, S]`. A query that sees no key gets finite
    numbers, for the caller to choose away.
    """
    heads_mask = None if mask is None else mask[:, None]
    # In float16 it asks for products that CPUs and TPUs do not have (JAX 0.10.2).
    if drop is None and q.dtype != jnp.float16:
        return jax.nn.dot_product_attention(
            q, k, v, mask=heads_mask, is_causal=is_causal, key_value_seq_lengths=lengths
        )
    seen = seen_keys(q.shape[1], k.shape[1], lengths=lengths, is_causal=is_causal, mask=mask)
    return mix_values(q, k, v, seen, drop)


def mix_values(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    seen: jax.Array | None,
    drop: Callable[[jax.Array], jax.Array] | None,
) -> jax.Array:
    """Return what `attend` does, written out: `jax.nn.dot_product_attention` drops nothing.

    Operands of one example may be those of all, and values of another width than keys.
    """
    num_heads, width = q.shape[2:]
    num_groups = k.shape[2]
    grouped = q.reshape(*q.shape[:2], num_groups, num_heads // num_groups, width)
    # Summed in float32: in float16 a score overflows, in bfloat16 it keeps two digits.
    dtype = jnp.result_type(q, k)
    wide = jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype
    products = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=wide)
    scores = jax.lax.collapse(products * width**-0.5, 1, 3)
    if seen is not None:
        # Not -inf: a query that sees no key would get nan.
        scores = jnp.where(seen[:, None], scores, jnp.finfo(wide).min)
    weights = jax.nn.softmax(scores)
    weights = (weights if drop is None else drop(weights)).astype(v.dtype)
    mixed = jnp.einsum("bkgts,bskh->btkgh", weights.reshape(products.shape), v)
    return jax.lax.collapse(mixed, 2, 4)


def seen_keys(
    num_queries: int,
    num_keys: int,
    *,
    lengths: jax.Array | None,
    is_causal: bool,
    mask: jax.Array | None,
) -> jax.Array | None:
    """Return which keys each query sees, `[B or 1, T or 1, S]`; None where it sees them all."""
    places = jax.lax.iota(jnp.int32, num_keys)
    masks = [] if mask is None else [mask]
    if is_causal:
        rows = jax.lax.iota(jnp.int32, num_queries)
        masks.append((places[None, :] <= rows[:, None])[None])
    if lengths is not None:
        masks.append(places[None, None, :] < lengths[:, None, None])
    return functools.reduce(operator.and_, masks) if masks else None

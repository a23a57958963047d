"""Multi-head attention: over oneself or another sequence, causal, packed, word by word."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias, overload

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_int
from penstock._mesh import MODEL
from penstock._parameter_names import Path
from penstock._program.frame import Frame, current_frame, find_frame
from penstock._program.sequences import Sequence, spoil_unequal
from penstock.layers._attending import Words, attend, close_words, open_words, seen_keys
from penstock.layers.arguments import check_divisor
from penstock.layers.dropout import dropout
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, add_to_name, apply_shift, parameter
from penstock.layers.positions import as_segments, rotary_embedding

Segments: TypeAlias = "Sequence | jax.Array | tuple[Sequence | jax.Array, ...] | None"
"""Segment ids of packed sequences: of all words, or of the queries' and of the keys'."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class KeyValueCache:
    """Store the keys and values of an attention layer's past words, for decoding word by word.

    It is a pytree, and the batch is the first axis of every leaf. It can be the carry of a
    `lax.scan` or `lax.while_loop`, and a beam search can reorder it with
    `jax.tree.map(lambda x: x[rows], cache)`.

    Arguments:
      keys: `[B, max_length, num_kv_heads, head_dim]`.
      values: of the same shape.
      position: the number of words that each example has so far, `[B]`, int32.

    >>> cache = init_cache(2, max_length=8, num_kv_heads=1, head_dim=4)
    >>> cache = cache.append(jnp.ones([2, 3, 1, 4]), jnp.ones([2, 3, 1, 4]), jnp.array([3, 1]))
    >>> cache.position.tolist(), cache.keys[:, :4, 0, 0].tolist()
    ([3, 1], [[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    """

    keys: jax.Array
    values: jax.Array
    position: jax.Array

    @property
    def max_length(self) -> int:
        """The number of words that the cache has room for."""
        return self.keys.shape[1]

    def places(self, count: int) -> jax.Array:
        """Return the positions of the next `count` words, `[B, count]`."""
        return self.position[:, None] + jax.lax.iota(jnp.int32, count)[None]

    def append(
        self, keys: jax.Array, values: jax.Array, lengths: jax.Array | None = None
    ) -> KeyValueCache:
        """Return the cache with more words; words that it has no room for are dropped.

        Arguments:
          keys, values: `[B, T, num_kv_heads, head_dim]`.
          lengths: the number of valid words of each example, `[B]`; by default all are valid.
        """
        batch, count = keys.shape[:2]
        places = self.places(count)
        if lengths is not None:
            # Behind the end, where nothing is written.
            is_valid = jax.lax.iota(jnp.int32, count)[None] < lengths[:, None]
            places = jnp.where(is_valid, places, self.max_length)
        rows = jax.lax.iota(jnp.int32, batch)[:, None]

        def write(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[rows, places].set(new.astype(old.dtype), mode="drop")

        added = count if lengths is None else lengths
        return KeyValueCache(
            write(self.keys, keys), write(self.values, values), self.position + added
        )


def init_cache(
    batch_size: int,
    max_length: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: DTypeLike | None = None,
) -> KeyValueCache:
    """Return an empty cache for the `cache` of `layers.multi_head_attention`.

    Arguments:
      batch_size: the number of examples; inside a program, `x.shape[0]`.
      max_length: the number of words that the cache has room for.
      num_kv_heads: the attention layer's `num_kv_heads`, or its `num_heads` if that is not set.
      head_dim: the attention layer's `head_dim`.
      dtype: by default the program's precision; outside a program, float32.

    >>> init_cache(2, max_length=16, num_kv_heads=4, head_dim=8).keys.shape
    (2, 16, 4, 8)
    """
    shape = (batch_size, max_length, num_kv_heads, head_dim)
    frame = find_frame()
    own = frame.compute_dtype if frame is not None else None
    zeros = jnp.zeros(shape, dtype or own or jnp.float32)
    return KeyValueCache(zeros, zeros, jnp.zeros([batch_size], jnp.int32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads:
    """The options of one attention; those of `multi_head_attention`, which explains them."""

    num_heads: int
    head_dim: int | None = None
    size: int | None = None
    num_kv_heads: int | None = None
    is_causal: bool = False
    dropout_rate: float = 0.0
    rotary: bool = False
    attrs: tuple[Attr, Attr] = (None, None)
    layer: str = "multi_head_attention"

    def complete(self, width: int) -> Heads:
        """Return the options with sizes filled in, for queries of `width` features."""
        num_kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        heads = f"layers.{self.layer} got num_heads="
        check_int(heads, self.num_heads, 1, error=ProgramError)
        why = "Each head of keys serves as many heads of queries."
        thing = f"{heads}{self.num_heads} and num_kv_heads="
        check_divisor(thing, num_kv_heads, self.num_heads, why)
        if self.head_dim is None:
            why = "Heads share the features equally. Change it, or give head_dim."
            check_divisor(heads, self.num_heads, width, why)
        head_dim = width // self.num_heads if self.head_dim is None else self.head_dim
        size = width if self.size is None else self.size
        return dataclasses.replace(self, num_kv_heads=num_kv_heads, head_dim=head_dim, size=size)


@overload
def multi_head_attention(
    queries: Words,
    keys: Sequence | jax.Array | None = None,
    values: Sequence | jax.Array | None = None,
    num_heads: int = 1,
    head_dim: int | None = None,
    size: int | None = None,
    *,
    num_kv_heads: int | None = None,
    is_causal: bool = False,
    segment_ids: Segments = None,
    dropout_rate: float = 0.0,
    rotary: bool = False,
    cache: None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Words: ...


@overload
def multi_head_attention(
    queries: Words,
    keys: Sequence | jax.Array | None = None,
    values: Sequence | jax.Array | None = None,
    num_heads: int = 1,
    head_dim: int | None = None,
    size: int | None = None,
    *,
    num_kv_heads: int | None = None,
    is_causal: bool = False,
    segment_ids: Segments = None,
    dropout_rate: float = 0.0,
    rotary: bool = False,
    cache: KeyValueCache,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> tuple[Words, KeyValueCache]: ...


def multi_head_attention(
    queries: Words,
    keys: Sequence | jax.Array | None = None,
    values: Sequence | jax.Array | None = None,
    num_heads: int = 1,
    head_dim: int | None = None,
    size: int | None = None,
    *,
    num_kv_heads: int | None = None,
    is_causal: bool = False,
    segment_ids: Segments = None,
    dropout_rate: float = 0.0,
    rotary: bool = False,
    cache: KeyValueCache | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Words | tuple[Words, KeyValueCache]:
    """Apply multi-head attention (Vaswani et al. 2017).

    Padding never counts. A query that is padding, or that sees no key, gives 0. Parameters:
    `query_w` `[D, num_heads * head_dim]`, `key_w` and `value_w` with `num_kv_heads`, `out_w`
    `[num_heads * head_dim, size]`, Xavier uniform; `query_b` and so on, zeros. In training,
    attention weights are dropped with `dropout_rate`. Source: `jax.nn.dot_product_attention`.

    Arguments:
      queries: a `Sequence` with values `[B, T, D]`, or an array `[B, T, D]` without padding.
      keys: `[B, S, D']`, by default the queries. `values`: `[B, S, D'']`, by default the keys.
      head_dim: by default `D / num_heads`. `size`: the number of output features, by default D.
      num_kv_heads: the heads of keys and values (Ainslie et al. 2023), by default `num_heads`.
      is_causal: query `t` sees only the keys `0` to `t`.
      segment_ids: `[B, T]`; words see only their own segment. A pair is for queries and keys.
      rotary: rotate queries and keys by their positions, see `rotary_embedding`.
      cache: the words before, see `init_cache`; implies `is_causal`. Words that overflow give nan.
      param_attr, bias_attr: for all weights, for all biases; `bias_attr=False` leaves these out.

    Returns:
      `[B, T, size]`, a `Sequence` if `queries` is one. With a cache, also the updated cache.

    >>> def program():
    ...     x = layers.data("x", [8], lod_level=1)
    ...     return layers.multi_head_attention(x, num_heads=2, is_causal=True).values
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[[0.0] * 8] * 3, [[0.0] * 8]]}).shape
    (2, 16, 8)
    """
    frame = current_frame("multi_head_attention")
    path = frame.names.layer("multi_head_attention", name)
    heads = Heads(
        num_heads=num_heads, head_dim=head_dim, size=size, num_kv_heads=num_kv_heads,
        is_causal=is_causal, dropout_rate=dropout_rate, rotary=rotary,
        attrs=(param_attr, bias_attr),
    )  # fmt: skip
    if cache is None:
        return attend_words(frame, path, heads, queries, keys, values, segment_ids)
    if keys is not None or values is not None or segment_ids is not None:
        raise ProgramError(
            "layers.multi_head_attention got a cache and keys, values or segment_ids, expected "
            "queries alone. The cache has the keys and values of the words before. Leave those out."
        )
    return attend_cached(frame, path, heads, queries, cache)


def attend_words(
    frame: Frame,
    path: Path,
    heads: Heads,
    queries: Words,
    keys: Sequence | jax.Array | None = None,
    values: Sequence | jax.Array | None = None,
    segment_ids: Segments = None,
) -> Words:
    """Return the attention of queries over keys with the parameters at `path`."""
    layer = heads.layer
    x, query_words = open_words(layer, "queries", queries)
    y, key_words = (x, query_words) if keys is None else open_words(layer, "keys", keys)
    z, value_words = (y, key_words) if values is None else open_words(layer, "values", values)
    check_operands(layer, x, y, z, key_words, value_words)
    heads = heads.complete(x.shape[-1])
    q, k, v = _project_heads(frame, path, heads, x, y, z)
    if heads.rotary:
        q, k = rotary_embedding(q), rotary_embedding(k)
    mask = _same_segment(layer, segment_ids, x, y)
    lengths = None if key_words is None else key_words.lengths
    drop = _dropping(frame, path, heads)
    mixed = attend(q, k, v, lengths=lengths, is_causal=heads.is_causal, mask=mask, drop=drop)
    out = _merge_heads(frame, path, heads, mixed)
    is_heard = None if query_words is None else query_words.mask
    if keys is not None or isinstance(segment_ids, tuple):
        # In the other case each valid word sees itself. Without segments the first key is the one
        # that all queries see, causal or not.
        is_causal = heads.is_causal and mask is not None
        sizes = x.shape[1], y.shape[1]
        seen = seen_keys(*sizes, lengths=lengths, is_causal=is_causal, mask=mask)
        if seen is not None:
            sees_one = jnp.any(seen, axis=-1)
            is_heard = sees_one if is_heard is None else sees_one & is_heard
    if is_heard is not None:
        # Chosen, not multiplied: no gradient goes where nothing was seen.
        out = jnp.where(is_heard[..., None], out, 0)
    if key_words is not None and value_words is not None:
        out = spoil_unequal(out, [key_words, value_words])
    return close_words(queries, out)


def attend_cached(
    frame: Frame, path: Path, heads: Heads, queries: Words, cache: KeyValueCache
) -> tuple[Words, KeyValueCache]:
    """Return the causal attention of new words over those of a cache and themselves, and both."""
    x, words = open_words(heads.layer, "queries", queries)
    heads = heads.complete(x.shape[-1])
    # A sequence may be padded to more than there is room for.
    _check_cache(heads, x, cache, x.shape[1] if words is None else 0)
    q, k, v = _project_heads(frame, path, heads, x, x, x)
    count = x.shape[1]
    places = cache.places(count)
    if heads.rotary:
        q, k = rotary_embedding(q, places), rotary_embedding(k, places)
    after = cache.append(k, v, None if words is None else words.lengths)
    k, v = after.keys.astype(q.dtype), after.values.astype(q.dtype)
    drop = _dropping(frame, path, heads)
    # One word sees all that is there: no mask is made for it.
    lengths = cache.position + 1 if count == 1 else None
    slots = jax.lax.iota(jnp.int32, cache.max_length)[None, None]
    mask = None if count == 1 else slots <= places[..., None]
    out = _merge_heads(frame, path, heads, attend(q, k, v, lengths=lengths, mask=mask, drop=drop))
    # A word that there was no room for must be noticed.
    out = jnp.where((places < cache.max_length)[..., None], out, jnp.nan)
    if words is not None:
        out = words.with_values(out).masked()
    return close_words(queries, out), after


def _project_heads(
    frame: Frame, path: Path, heads: Heads, x: jax.Array, y: jax.Array, z: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    assert heads.head_dim is not None
    assert heads.num_kv_heads is not None
    operands = [("query", x, heads.num_heads), ("key", y, heads.num_kv_heads)]
    operands.append(("value", z, heads.num_kv_heads))
    projected = []
    for part, words, count in operands:
        size = count * heads.head_dim
        flat = project(frame, path, part, words, size, heads.attrs, layer=heads.layer)
        projected.append(flat.reshape(*flat.shape[:2], count, heads.head_dim))
    dtype = jnp.result_type(*projected)
    q, k, v = (part.astype(dtype) for part in projected)
    return q, k, v


def _merge_heads(frame: Frame, path: Path, heads: Heads, mixed: jax.Array) -> jax.Array:
    assert heads.size is not None
    flat = mixed.reshape(*mixed.shape[:2], -1)
    return project(frame, path, "out", flat, heads.size, heads.attrs, layer=heads.layer)


def _dropping(frame: Frame, path: Path, heads: Heads) -> Callable[[jax.Array], jax.Array] | None:
    rate = heads.dropout_rate
    # A rate that is no share goes on to `dropout`, which refuses it in every mode.
    if not rate or (0 <= rate <= 1 and not frame.is_dropping):
        return None
    return lambda weights: dropout(weights, rate, dropout_name(frame, path, "dropout"))


def dropout_name(frame: Frame, path: Path, own: str) -> str:
    """Return the name of a dropout of the layer at `path`: the same wherever that is shared."""
    return "_".join((*path[len(frame.names.scope.path) :], own))


def _same_segment(
    layer: str, segment_ids: Segments, x: jax.Array, y: jax.Array
) -> jax.Array | None:
    """Return where queries and keys are of one segment, `[B, T, S]`."""
    if segment_ids is None:
        return None
    both = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
    ids = [as_segments(layer, segments) for segments in both]
    shapes, expected = [segments.shape for segments in ids], [x.shape[:2], y.shape[:2]]
    if shapes != expected:
        raise ProgramError(
            f"layers.{layer} got segment ids of shapes {shapes}, expected {expected}. Each query "
            "and each key has one. Give those of the words, or a pair for queries and keys."
        )
    return ids[0][:, :, None] == ids[1][:, None, :]


def check_operands(
    layer: str,
    x: jax.Array,
    y: jax.Array,
    z: jax.Array,
    key_words: Sequence | None,
    value_words: Sequence | None,
    *,
    may_share: bool = False,
) -> None:
    """Raise unless each example has queries, and as many values as keys, padded alike.

    `may_share`: the operands of one example may be those of all.
    """
    batch_sizes = {operand.shape[0] for operand in (x, y, z)} - ({1} if may_share else set())
    is_like = (key_words is None) == (value_words is None)
    if len(batch_sizes) > 1 or y.shape[1] != z.shape[1] or not is_like:
        kinds = ["array" if words is None else "Sequence" for words in (key_words, value_words)]
        raise ProgramError(
            f"layers.{layer} got queries {x.shape}, keys {y.shape} ({kinds[0]}) and values "
            f"{z.shape} ({kinds[1]}), expected [B, T, D], [B, S, D'] and [B, S, D'']. Each key "
            "has a value, and each example its own. Give values of the keys' lengths."
        )


def _check_cache(heads: Heads, x: jax.Array, cache: KeyValueCache, count: int) -> None:
    expected = (x.shape[0], cache.max_length, heads.num_kv_heads, heads.head_dim)
    if cache.keys.shape != expected or count > cache.max_length:
        raise ProgramError(
            f"layers.{heads.layer} got a cache of shape {cache.keys.shape} for {count} words, "
            f"expected {expected} and at most {cache.max_length} words. It keeps keys by head. "
            "Make it with layers.init_cache of the same sizes."
        )


def project(
    frame: Frame,
    path: Path,
    part: str,
    x: jax.Array,
    size: int,
    attrs: tuple[Attr, Attr],
    *,
    layer: str,
) -> jax.Array:
    """Return `x @ w + b` over the last axis, `[B, T, size]`.

    Parameters: `{part}_w` `[D, size]`, Xavier uniform; `{part}_b` `[size]`, zeros.

    Arguments:
      x: `[B, T, D]`.
      attrs: for the weight and for the bias, of all parts; a name gets the part's behind it.
    """
    leaf = f"{part}_w"
    attr = add_to_name(layer, "param_attr", attrs[0], leaf)
    # What goes into a block is split by heads and hidden units, what leaves it added up: one
    # message between the devices of a model for both.
    axes, bias_axes = ((MODEL, None), ()) if part == "out" else ((None, MODEL), (MODEL,))
    shape = [x.shape[-1], size]
    w = parameter(frame, path, leaf, shape, XAVIER, attr, layer=layer, axes=axes)
    x, w = frame.promote(x, w)
    leaf = f"{part}_b"
    attr = add_to_name(layer, "bias_attr", attrs[1], leaf)
    return apply_shift(frame, x @ w, path, attr, axis=-1, layer=layer, leaf=leaf, axes=bias_axes)

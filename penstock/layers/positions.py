"""Position encodings: sinusoidal, learned and rotary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import ProgramError, check_int
from penstock._program.frame import current_frame, spread, widen
from penstock._program.sequences import Sequence
from penstock.layers import arguments
from penstock.layers._attending import Words, close_words, open_words
from penstock.layers.initializers import normal
from penstock.layers.parameters import Attr, parameter


def sinusoidal_positions(length: int, width: int, base: float = 10000.0) -> jax.Array:
    """Return the table of sinusoidal position encodings (Vaswani et al. 2017).

    Row `p` has `sin(p / base ** (2 i / width))` in column `2 i`, and the cosine of the same angle
    in column `2 i + 1`.

    Returns:
      `[length, width]`, float32.

    >>> sinusoidal_positions(2, 4).round(2).tolist()[0]
    [0.0, 1.0, 0.0, 1.0]
    """
    check_int("layers.sinusoidal_positions: length", length, 1)
    check_int("layers.sinusoidal_positions: width", width, 1)
    return _waves(lax.iota(jnp.int32, length), width, base)


def add_positions(x: Words, positions: jax.Array | None = None, base: float = 10000.0) -> Words:
    """Add `sinusoidal_positions` to a sequence of vectors.

    Arguments:
      x: a `Sequence` with values `[B, T, D]`, or an array `[B, T, D]`.
      positions: the positions of the words, integers `[B, T]` or `[T]`; by default 0, 1, 2, ...
        Pass `cache.places(1)` when decoding word by word, and `segment_positions(segment_ids)` for
        packed sequences.

    Returns:
      The sum, of the same type and shape as `x`.

    >>> add_positions(jnp.zeros([1, 2, 4])).round(2)[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    values, _ = open_words("add_positions", "an input", x)
    places = _as_places("add_positions", positions, values)
    return close_words(x, values + _waves(places, values.shape[-1], base).astype(values.dtype))


def position_embedding(
    x: Words,
    max_length: int,
    positions: jax.Array | None = None,
    param_attr: Attr = None,
    name: str | None = None,
) -> Words:
    """Add a learned position embedding to each word of a sequence (Gehring et al. 2017).

    Parameter: `w` `[max_length, D]`, normal with standard deviation 0.02. A word at a position
    outside the table becomes nan, which makes the mistake visible. Padding may lie outside.

    Arguments:
      x: a `Sequence` with values `[B, T, D]`, or an array `[B, T, D]`.
      max_length: the number of positions in the table.
      positions: the positions of the words, as for `add_positions`.

    Returns:
      The sum, of the same type and shape as `x`.

    >>> def program():
    ...     return layers.position_embedding(layers.data("x", [5, 8]), max_length=32)
    >>> ps.ProgramBuilder(infer_func=program).init().variables["params"]["position_embedding_0"]
    {'w': Array(...dtype=float32)}
    """
    layer = "position_embedding"
    frame = current_frame(layer)
    values, sequence = open_words(layer, "an input", x)
    path = frame.names.layer(layer, name)
    size = [max_length, values.shape[-1]]
    table = parameter(frame, path, "w", size, normal(0.02), param_attr, layer=layer)
    places = _as_places(layer, positions, values)
    # A negative one would count from the end; one behind the end reads as nan.
    places = jnp.where(places < 0, max_length, places)
    rows = jnp.take(table, places, axis=0, mode="fill", fill_value=jnp.nan)
    total = values + spread(rows, values)
    if sequence is not None:
        total = sequence.with_values(total).masked()
    return close_words(x, total)


def rotary_embedding(
    x: jax.Array, positions: jax.Array | None = None, base: float = 10000.0
) -> jax.Array:
    """Rotate queries or keys by angles that grow with their positions (Su et al. 2021).

    Dot products of rotated queries and keys depend only on their contents and on the distance
    between them. Elements `i` and `i + H / 2` form a pair, which is rotated by `position / base **
    (2 i / H)`. The paper pairs neighbours, which differs only in the order of a head's elements.

    Arguments:
      x: `[B, T, N, H]` for N heads, with `H` even.
      positions: integers `[B, T]` or `[T]`; by default 0, 1, 2, ...

    Returns:
      The input's shape and dtype.

    >>> rotary_embedding(jnp.ones([1, 2, 1, 2]))[0, 0, 0].tolist()
    [1.0, 1.0]
    """
    x = jnp.asarray(x)
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ProgramError(
            f"layers.rotary_embedding got an input of shape {x.shape}, expected [B, T, N, H] with "
            "an even H. Elements are turned in pairs. Use an even head_dim."
        )
    half = x.shape[-1] // 2
    rates = jnp.asarray(_rates(half, 2 * half, base))
    places = _as_places("rotary_embedding", positions, x)
    angles = (places[..., None].astype(jnp.float32) * rates[None, None])[:, :, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = widen(x[..., :half]), widen(x[..., half:])
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def segment_positions(segment_ids: Sequence | jax.Array) -> jax.Array:
    """Return the positions of the words in packed sequences, from 0 in each segment.

    Arguments:
      segment_ids: `[B, T]` or `[B, T, 1]`, integers that change from segment to segment.

    Returns:
      `[B, T]`, int32.

    >>> segment_positions(jnp.array([[1, 1, 1, 2, 2, 0]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    ids = as_segments("segment_positions", segment_ids)
    places = lax.iota(jnp.int32, ids.shape[1])[None]
    is_first = jnp.concatenate([jnp.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], axis=1)
    return places - lax.cummax(jnp.where(is_first, places, 0), axis=1)


def as_segments(layer: str, segment_ids: Sequence | jax.Array) -> jax.Array:
    """Return segment ids as integers `[B, T]`."""
    ids = jnp.asarray(segment_ids.values if isinstance(segment_ids, Sequence) else segment_ids)
    # A sequence of ids is declared with the shape [1].
    squeezed = ids[..., 0] if ids.ndim == 3 and ids.shape[-1] == 1 else ids
    why = "Each word has the number of its sequence. Feed them beside the words."
    arguments.check_shape(f"layers.{layer} got segment ids", squeezed, why, ["B", "T"])
    return arguments.integers(layer, "segment ids", squeezed)


def _as_places(layer: str, positions: jax.Array | None, x: jax.Array) -> jax.Array:
    batch, length = x.shape[:2]
    if positions is None:
        return lax.iota(jnp.int32, length)[None]
    # Widened: in a byte the end of a table of 300 rows would be row 44.
    places = arguments.integers(layer, "positions", positions)
    why = "Each word has one. Leave them out to count from 0."
    forms = [batch, length], [1, length], [length]
    arguments.check_shape(f"layers.{layer} got positions", places, why, *forms)
    return places.reshape(-1, length)


def _rates(count: int, width: int, base: float) -> np.ndarray:
    return (base ** (-2.0 * np.arange(count) / width)).astype(np.float32)


def _waves(places: jax.Array, width: int, base: float) -> jax.Array:
    """Return sines and cosines by turns, `[..., width]`."""
    rates = _rates(-(-width // 2), width, base)
    angles = places[..., None].astype(jnp.float32) * rates.reshape(*(1,) * places.ndim, -1)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*places.shape, -1)[..., :width]

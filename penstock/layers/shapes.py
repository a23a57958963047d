"""Joining, flattening, encoding and comparing arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from penstock._errors import ProgramError, check_choice, check_int, check_number, check_type
from penstock._program import sequences
from penstock._program.frame import V, over_words
from penstock.layers import arguments
from penstock.layers.arguments import DataFormat, check_shape
from penstock.layers.norm import l2_normalize


def concat(input: Sequence[V], axis: int) -> V:
    """Join arrays along an axis. Source: Fluid's `concat`, whose default axis is 0.

    Arguments:
      input: arrays that agree in every other axis. Sequences are joined word by word, where axis 1
        is the first axis of a word; `sequence_concat` joins them along time.
      axis: the axis to join; a negative one counts from the end. 0 is the batch, of arrays only.

    >>> concat([jnp.array([[1.0]]), jnp.array([[2.0, 3.0]])], axis=1).tolist()
    [[1.0, 2.0, 3.0]]
    """
    why = "An array would be taken for a list of its rows. Pass [x, y]."
    expected = f"a list of arrays or sequences. {why}"
    check_type("layers.concat", input, list | tuple, expected, ProgramError)
    parts: list[Any] = list(input)
    if sequences.Sequence in map(type, parts):
        return over_words(lambda *rows: _concat_words(rows, axis), *parts)
    joined: Any = jnp.concatenate([jnp.asarray(x) for x in parts], axis=axis)
    return joined


def _concat_words(rows: Sequence[jax.Array], axis: int) -> jax.Array:
    if axis in (0, -rows[0].ndim):
        raise ProgramError(
            f"layers.concat got sequences and axis={axis}, expected an axis of their words. Axis 0 "
            "is the batch, and the lengths would no longer meet it. Apply what follows to each "
            "sequence, under one name."
        )
    return concat(rows, axis)


def pad2d(
    input: jax.Array,
    paddings: Sequence[int],
    mode: Literal["constant", "reflect", "edge"] = "constant",
    pad_value: float = 0.0,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Pad images at their borders. Source: Fluid's `pad2d`, whose images are channels first.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      paddings: `[top, bottom, left, right]` in pixels.
      mode: `"constant"` fills with `pad_value`, `"reflect"` mirrors the image at its outermost
        pixels, `"edge"` repeats those pixels.

    Returns:
      `[B, top + H + bottom, left + W + right, C]`, in the input's layout.

    >>> pad2d(jnp.ones([1, 2, 2, 1]), [0, 1, 2, 0]).shape
    (1, 3, 4, 1)
    """
    x = jnp.asarray(input)
    arguments.check_image("pad2d", x, data_format)
    check_choice("layers.pad2d got mode=", mode, ("constant", "reflect", "edge"))
    sides = list(paddings)
    if len(sides) != 4 or any(side < 0 for side in sides):
        raise ProgramError(
            f"layers.pad2d got paddings={paddings!r}, expected four numbers of 0 or more: top, "
            "bottom, left, right."
        )
    borders = [(0, 0), (sides[0], sides[1]), (sides[2], sides[3])]
    # No border around channels.
    borders.insert(3 if data_format == "NHWC" else 1, (0, 0))
    if mode == "constant":
        return jnp.pad(x, borders, constant_values=pad_value)
    return jnp.pad(x, borders, mode=mode)


def flatten(x: jax.Array, axis: int = 1) -> jax.Array:
    """Reshape `x` to two axes, one for those before `axis` and one for the rest. Source: Fluid's.

    >>> flatten(jnp.zeros([2, 3, 4])).shape, flatten(jnp.zeros([2, 3, 4]), axis=2).shape
    ((2, 12), (6, 4))
    """
    x = jnp.asarray(x)
    thing = f"layers.flatten got an input of shape {x.shape} and axis="
    why = "The batch stays in front. Use axis=1 to keep only the batch."
    check_number(thing, axis, f"[1, {x.ndim}]", why, ProgramError)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def one_hot(input: V, depth: int) -> V:
    """Return one-hot vectors, float32. Source: Fluid's `one_hot`.

    A class outside the range gives a row of nan, which makes the mistake visible.

    Arguments:
      input: integer classes `[B, ..., 1]` or `[B, ...]`.
      depth: the number of classes.

    Returns:
      `[B, ..., depth]`.

    >>> one_hot(jnp.array([[0], [2]]), depth=3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def compute(classes: jax.Array) -> jax.Array:
        ids = arguments.integers("one_hot", "classes", classes)
        if ids.ndim > 1 and ids.shape[-1] == 1:
            ids = ids[..., 0]
        # JAX gives zeros for an id out of range, which nobody would notice.
        is_class = ((ids >= 0) & (ids < depth))[..., None]
        return jnp.where(is_class, jax.nn.one_hot(ids, depth, dtype=jnp.float32), jnp.nan)

    return over_words(compute, input)


def topk(input: V, k: int = 1) -> tuple[V, V]:
    """Return the `k` largest values along the last axis and their indices.

    The largest comes first. Of equal values, the one with the lower index comes first. Source:
    Fluid's `topk`.

    Returns:
      Values `[..., k]` and indices `[..., k]`, int32.

    >>> values, indices = topk(jnp.array([[1.0, 3.0, 2.0]]), k=2)
    >>> values.tolist(), indices.tolist()
    ([[3.0, 2.0]], [[1, 2]])
    """
    # Of more than there are JAX's own error says so; of none it would be no error.
    check_int("layers.topk: k", k, 1)
    values, indices = over_words(lambda rows: lax.top_k(jnp.asarray(rows), k), input)
    return values, indices


def cos_sim(X: V, Y: V) -> V:
    """Return the cosine similarity of the rows of `X` and `Y`, whatever their lengths.

    A row of zeros has cosine 0 and a finite gradient. Source: Fluid's `cos_sim`.

    Arguments:
      X: `[B, C]`.
      Y: `[B, C]`, or `[1, C]` to compare every row with the same one.

    Returns:
      `[B, 1]`.

    >>> cos_sim(jnp.array([[2.0, 0.0], [0.0, 3.0]]), jnp.array([[4.0, 0.0]])).tolist()
    [[1.0], [0.0]]
    """
    return over_words(_cos_sim, X, Y)


def _cos_sim(X: jax.Array, Y: jax.Array) -> jax.Array:
    X, Y = jnp.asarray(X), jnp.asarray(Y)
    why = "Rows are compared one by one. Flatten both to two axes."
    check_shape("layers.cos_sim got X", X, why, ["B", "C"])
    num_rows, width = X.shape
    check_shape("layers.cos_sim got Y", Y, why, [num_rows, width], [1, width])
    X, Y = (l2_normalize(_scale_rows(rows), 1) for rows in (X, Y))
    return jnp.sum(X * Y, axis=1, keepdims=True)


def _scale_rows(x: jax.Array) -> jax.Array:
    """Return rows whose largest magnitude is 1, or 0.

    A cosine does not depend on a row's length. The epsilon of `l2_normalize` would: at a length of
    1e-6 it is as large as the square, and the square of 1e20 is infinite.
    """
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), axis=1, keepdims=True, initial=0))
    return x / jnp.where(largest > 0, largest, 1)

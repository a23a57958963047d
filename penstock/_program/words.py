"""Layers of rows over the words of sequences: what works on `[B, ...]` works on every word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from penstock._program.frame import find_frame
from penstock._program.sequences import Sequence, spoil_unequal

V = TypeVar("V", jax.Array, Sequence)
"""An array whose rows are examples, or a sequence, whose rows are the words of its examples."""


def over_words(function: Callable[..., Any], first: V, *others: Any) -> V:
    """Return what a function of rows gives, for the words of sequences where there are any.

    Without a sequence this is `function(first, *others)`. Sequences become rows `[B * T, ...]`, as
    Fluid's tensors of sequences are, and what comes back a sequence of the first one's lengths. An
    array among them, `[B, ...]`, is repeated for each word of its example.

    Arguments:
      function: of rows, which returns as many, in an array or a tuple of arrays.
    """
    operands = (first, *others)
    if Sequence not in map(type, operands):
        return function(*operands)
    found = [each for each in operands if isinstance(each, Sequence)]
    length = min(each.max_length for each in found)
    result = function(*[_as_rows(each, found[0], length) for each in operands])
    return jax.tree.map(lambda rows: _as_sequence(rows, found, length), result)


def _as_rows(operand: Any, like: Sequence, length: int) -> Any:
    if isinstance(operand, Sequence):
        values = operand.values[:, :length]
        return _reshape(values, operand.values, (-1, *values.shape[2:]))
    if not isinstance(operand, jax.Array) or not operand.ndim:
        return operand
    # As many axes as rows of words have, one in front for the examples.
    batch_size, num_axes = like.values.shape[0], like.values.ndim - 1
    is_per_example = operand.shape[0] == batch_size and operand.ndim >= num_axes
    return jnp.repeat(operand, length, axis=0) if is_per_example else operand


def _as_sequence(rows: jax.Array, found: list[Sequence], length: int) -> Sequence:
    values = _reshape(rows, rows, (-1, length, *rows.shape[1:]))
    return Sequence(spoil_unequal(values, found), found[0].lengths)


def _reshape(values: jax.Array, known: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return values in another shape; if `known` are probabilities, so are they."""
    reshaped = values.reshape(shape)
    frame = find_frame()
    entry = None if frame is None else frame.logits.get(id(known))
    if frame is not None and entry is not None:
        logits = entry[1][:, : values.shape[1]] if values is not known else entry[1]
        frame.logits[id(reshaped)] = (reshaped, logits.reshape(shape))
    return reshaped

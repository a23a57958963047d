"""Sequences of any length in one batch: values padded to a common length, and their lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Operand: TypeAlias = "Sequence | jax.Array | np.ndarray | float"
"""What a sequence can be added to or multiplied by."""


_EXPECTED = (
    "expected a layer of sequences, sequence.map(function) or sequence.masked(): its padding would "
    "count."
)

_ONE_LEVEL = "expected its inner sequences, nested.inner: layers work on one level at a time."


_Operator: TypeAlias = "Callable[[Sequence, Operand], Sequence]"


def _operators(function: Callable[[Any, Any], jax.Array]) -> tuple[_Operator, _Operator]:
    """Return an operator of sequences, and the one for a sequence on the right."""
    return (
        lambda self, other: combine(function, self, other),
        lambda self, other: combine(function, other, self),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Sequence:
    """Hold a batch of sequences, which Fluid calls a tensor with `lod_level=1`.

    It is a pytree. The elements of a sequence are called words. Values beyond a sequence's length
    are padding: any finite numbers, which layers ignore. Layers that work on rows (`fc`,
    `embedding`, activations, losses) treat every word as a row, as in Fluid, and return a sequence
    with the same lengths.

    Arguments:
      values: `[B, T, ...]`, where `T` is at least the largest length.
      lengths: `[B]`, int32, from 0 to `T`.

    >>> words = Sequence(jnp.array([[1, 2, 3], [4, 0, 0]]), jnp.array([3, 1]))
    >>> words.mask.tolist()
    [[True, True, True], [True, False, False]]
    >>> [each.tolist() for each in (words * 2).cut()]
    [[2, 4, 6], [8]]
    """

    values: jax.Array
    lengths: jax.Array

    # numpy would otherwise take a sequence for an object and multiply it element by element.
    __array_ufunc__ = None

    @property
    def max_length(self) -> int:
        """The length that all sequences are padded to, `T`."""
        return self.values.shape[1]

    @property
    def mask(self) -> jax.Array:
        """Whether each position holds a word and not padding, booleans `[B, T]`."""
        places = jax.lax.iota(jnp.int32, self.max_length)
        return places[None, :] < self.lengths[:, None]

    def aligned_mask(self) -> jax.Array:
        """Return the mask with trailing axes of size 1, to broadcast against `values`."""
        return self.mask.reshape(*self.values.shape[:2], *(1,) * (self.values.ndim - 2))

    def with_values(self, values: jax.Array) -> Sequence:
        """Return a sequence with other values `[B, T, ...]` and the same lengths."""
        return Sequence(values, self.lengths)

    def masked(self, fill: float = 0) -> jax.Array:
        """Return the values with `fill` in place of padding, `[B, T, ...]`.

        Values are selected, not multiplied by 0: the gradient at the padding is 0 whatever its
        values are.
        """
        return jnp.where(self.aligned_mask(), self.values, jnp.asarray(fill, self.values.dtype))

    def map(self, function: Callable[[jax.Array], jax.Array]) -> Sequence:
        """Apply a function of rows to all words, including padding.

        Arguments:
          function: takes rows `[B * T, ...]` and returns the same number of rows.
        """
        return self.with_rows(function(self.values.reshape(-1, *self.values.shape[2:])))

    def with_rows(self, rows: jax.Array) -> Sequence:
        """Return a sequence of the same lengths whose words are the rows `[B * T, ...]`."""
        return self.with_values(rows.reshape(*self.values.shape[:2], *rows.shape[1:]))

    def cut(self) -> CutSequences:
        """Return a list of numpy arrays `[length, ...]`, one for each sequence.

        It cannot be used inside a program function.
        """
        values, lengths = np.asarray(self.values), np.asarray(self.lengths)
        return CutSequences(row[:length] for row, length in zip(values, lengths, strict=True))

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"a Sequence got iterated over, {_EXPECTED}")

    def __jax_array__(self) -> jax.Array:
        raise TypeError(f"a Sequence got used as an array, {_EXPECTED}")

    def __neg__(self) -> Sequence:
        return self.with_values(-self.values)

    __add__, __radd__ = _operators(jnp.add)
    __sub__, __rsub__ = _operators(jnp.subtract)
    __mul__, __rmul__ = _operators(jnp.multiply)
    __truediv__, __rtruediv__ = _operators(jnp.true_divide)
    __pow__, __rpow__ = _operators(jnp.power)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class NestedSequence:
    """Hold a batch of sequences of sequences, such as documents made of sentences.

    Fluid calls it a tensor with `lod_level=2`. Layers work on one level at a time. First they work
    on `inner`, which is a batch of all the inner sequences. `outer` then turns one row for each
    inner sequence back into a sequence for each example.

    Arguments:
      values: `[B, K, T, ...]`, where `K` is at least the largest number of sequences in an example.
      lengths: `[B, K]`, int32, 0 where there is no sequence.
      counts: the number of sequences in each example, `[B]`, int32.

    >>> text = NestedSequence(jnp.ones([1, 2, 3, 1]), jnp.array([[3, 0]]), jnp.array([1]))
    >>> text.inner.values.shape, text.inner.lengths.tolist()
    ((2, 3, 1), [3, 0])
    >>> text.outer(jnp.ones([2, 5])).cut()[0].shape
    (1, 5)
    """

    values: jax.Array
    lengths: jax.Array
    counts: jax.Array

    @property
    def inner(self) -> Sequence:
        """All inner sequences as one batch, with values `[B * K, T, ...]`."""
        shape = (-1, *self.values.shape[2:])
        return Sequence(self.values.reshape(shape), self.lengths.reshape(-1))

    def with_inner(self, inner: Sequence) -> NestedSequence:
        """Return a nested sequence with other inner sequences and the same counts."""
        shape = (*self.lengths.shape, *inner.values.shape[1:])
        lengths = inner.lengths.reshape(self.lengths.shape)
        return NestedSequence(inner.values.reshape(shape), lengths, self.counts)

    def outer(self, rows: jax.Array) -> Sequence:
        """Return one sequence for each example from a row for each inner sequence.

        Arguments:
          rows: `[B * K, ...]`.
        """
        return Sequence(rows.reshape(*self.lengths.shape, *rows.shape[1:]), self.counts)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"a NestedSequence got iterated over, {_ONE_LEVEL}")

    def __jax_array__(self) -> jax.Array:
        raise TypeError(f"a NestedSequence got used as an array, {_ONE_LEVEL}")

    def cut(self) -> CutNestedSequences:
        """Return a list for each example with its sequences as numpy arrays.

        It cannot be used inside a program function.
        """
        rows, counts = self.inner.cut(), np.asarray(self.counts)
        width = self.lengths.shape[1]
        return CutNestedSequences(
            CutSequences(rows[n * width : n * width + count]) for n, count in enumerate(counts)
        )


def combine(function: Callable[[Any, Any], jax.Array], left: Operand, right: Operand) -> Sequence:
    """Return a function of two operands word by word; at least one of them is a sequence.

    An array `[B, ...]` of as many axes less one, a vector an example, meets every word of its
    example; a number or an array without a batch axis (of at most the axes of one word) every word.
    """
    sequences = [operand for operand in (left, right) if isinstance(operand, Sequence)]
    length = min(operand.max_length for operand in sequences)
    like = sequences[0]
    operands = [_meet(operand, like, length) for operand in (left, right)]
    values = function(*operands)
    return Sequence(spoil_unequal(values, sequences), like.lengths)


def _meet(operand: Operand, like: Sequence, length: int) -> Any:
    if isinstance(operand, Sequence):
        return operand.values[:, :length]
    axes = np.ndim(operand)
    if not axes:
        return operand
    operand = jnp.asarray(operand)
    if axes == like.values.ndim - 1:
        # By the number of axes alone, and never by a size that may be equal by chance. A probe's
        # batch is of another size than its sequences.
        if operand.shape[0] not in (1, like.values.shape[0]):
            raise TypeError(
                f"a Sequence of values of shape {like.values.shape} met an array of shape "
                f"{operand.shape}, expected one row for each example, or the axes of one word. "
                "What differs from word to word goes by sequence.with_values."
            )
        return jnp.expand_dims(operand, 1)
    # Written out, since users may run JAX with `jax_numpy_rank_promotion="raise"`.
    return operand.reshape(*(1,) * (like.values.ndim - axes), *operand.shape)


def spoil_unequal(values: jax.Array, sequences: list[Sequence]) -> jax.Array:
    """Return values with nan where the sequences of an example differ in length.

    It cannot be told before a program runs, and must be noticed. Whole numbers stay as they are.
    """
    if len(sequences) < 2 or not jnp.issubdtype(values.dtype, jnp.inexact):
        return values
    first, *rest = [words.lengths for words in sequences]
    is_equal = jnp.ones(first.shape, bool)
    for lengths in rest:
        if lengths is not first:
            is_equal = is_equal & (lengths == first)
    return jnp.where(is_equal.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.nan)


class CutSequences(list[np.ndarray]):
    """The sequences of a batch, each by itself: one value, where a plain list is several.

    >>> Sequence(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1])).cut()
    [array([1, 2], dtype=int32), array([3], dtype=int32)]
    """


class CutNestedSequences(list[CutSequences]):
    """The sequences of sequences of a batch, each by itself: one value too."""


# JAX takes a list of another class for a leaf.
jax.tree_util.register_pytree_node(
    CutSequences, lambda node: (list(node), None), lambda _, arrays: CutSequences(arrays)
)
jax.tree_util.register_pytree_node(
    CutNestedSequences, lambda node: (list(node), None), lambda _, parts: CutNestedSequences(parts)
)


def cut_all(returned: Any) -> Any:
    """Return nested values with lists of arrays in place of sequences; outside programs."""
    if isinstance(returned, (Sequence, NestedSequence)):
        return returned.cut()
    if isinstance(returned, dict):
        return {key: cut_all(value) for key, value in returned.items()}
    if isinstance(returned, (tuple, list)):
        kind, cut = type(returned), [cut_all(value) for value in returned]
        return kind(*cut) if hasattr(returned, "_fields") else kind(cut)
    return returned

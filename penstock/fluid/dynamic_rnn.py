"""A custom recurrent layer: a function of one step, run over the words of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import align, find_frame, remember_logits, widen
from penstock.layers.recurrence import Hold, scan_words

Memories = TypeVar("Memories")


def dynamic_rnn(
    step: Callable[[Memories, Any], tuple[Memories, Any]],
    memories: Memories,
    input: Any,
    is_reverse: bool = False,
) -> tuple[Memories, Any]:
    """Scan a step function over the words of sequences, as `lax.scan` does over an array.

    The function is traced once, and its layers share their parameters over all words. After the
    last word of an example, its memories keep their values. Arrays and sequences from outside the
    function are the same at every word. The function also runs on padding, where it sees the first
    word of the example, or zeros if the example is empty.

    Arguments:
      step: takes the memories and one word of each example, arrays `[B, ...]` in the structures of
        `memories` and `input`. It returns the new memories and a pytree of outputs `[B, ...]`.
      memories: a pytree of arrays `[B, ...]`, the values before the first word. Floats narrower
        than float32 are widened, because sums may be accumulated in them.
      input: a sequence, or a pytree of sequences of equal lengths.
      is_reverse: whether each sequence is read from its last word to its first.

    Returns:
      The memories after the last word of each example, and the outputs as sequences.

    >>> words = ps.Sequence(jnp.array([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]), jnp.array([3, 1]))
    >>> total, totals = dynamic_rnn(lambda old, x: (old + x, old + x), jnp.zeros([2]), words)
    >>> total.tolist(), totals.cut()
    ([6.0, 4.0], [array([1., 3., 6.], dtype=float32), array([4.], dtype=float32)])
    """
    inputs = _find_sequences(input)
    lengths = inputs[0].lengths
    batch, longest = lengths.shape[0], min(each.max_length for each in inputs)
    memories = jax.tree.map(lambda memory: _widen(_check_rows("a memory", memory, batch)), memories)
    words = jax.tree.map(
        lambda each: _fill(sequences.spoil_unequal(each.values[:, :longest], inputs), lengths),
        input,
        is_leaf=_is_sequence,
    )

    def held(state: Any, word: Any, hold: Hold) -> tuple[Any, Any]:
        new, outputs = step(state, word)
        _check_memories(new, state)
        outputs = jax.tree.map(lambda x: _check_rows("an output", x, batch), outputs)
        given = (outputs, [recall_logits(x) for x in jax.tree.leaves(outputs)])
        zeros = jax.tree.map(jnp.zeros_like, given)
        return hold(new, state), hold(given, zeros)

    last, given = scan_words(held, memories, words, lengths, is_reverse=is_reverse)
    # A cross entropy of the outputs is computed from the logits under them, as without a loop.
    for values, logits in zip(jax.tree.leaves(given[0]), given[1], strict=True):
        if logits is not None:
            remember_logits(values, logits)
    return last, jax.tree.map(lambda values: sequences.Sequence(values, lengths), given[0])


def _find_sequences(input: object) -> list[sequences.Sequence]:
    found = jax.tree.leaves(input, is_leaf=_is_sequence)
    if not found or not all(map(_is_sequence, found)):
        raise ProgramError(
            f"layers.dynamic_rnn got an input of {[type(each).__name__ for each in found]}, "
            "expected a Sequence, or several nested in lists or dicts. It takes a word of each at "
            "every step. Declare the input with lod_level=1; the step may use arrays from outside "
            "as they are."
        )
    return found


def _is_sequence(value: object) -> bool:
    return isinstance(value, sequences.Sequence)


def recall_logits(probabilities: jax.Array) -> jax.Array | None:
    """Return the logits under the result of a softmax of this program, None otherwise."""
    frame = find_frame()
    entry = frame.logits.get(id(probabilities)) if frame else None
    return None if entry is None else entry[1]


def _widen(memory: jax.Array) -> jax.Array:
    return widen(memory) if jnp.issubdtype(memory.dtype, jnp.floating) else memory


def _fill(values: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return values whose padding is the first word, so that a step computes nothing new there.

    A step may divide by what it gets: of zeros its gradient would be nan, and 0 * nan too.
    """
    places = align(lax.iota(lengths.dtype, values.shape[1]), values.ndim, 1)
    first = jnp.where(align(lengths, values.ndim, 0) > 0, values[:, :1], 0)
    return jnp.where(places < align(lengths, values.ndim, 0), values, first)


def _check_rows(what: str, value: ArrayLike, batch: int) -> jax.Array:
    array = jnp.asarray(value)
    if not array.ndim or array.shape[0] != batch:
        raise ProgramError(
            f"layers.dynamic_rnn got {what} of shape {array.shape}, expected [B, ...] with B = "
            f"{batch}. Each example has its own. Make it of as many rows as the input has examples."
        )
    return array


def _check_memories(new: Any, old: Any) -> None:
    shapes = [jax.tree.map(jnp.shape, each) for each in (new, old)]
    if shapes[0] != shapes[1]:
        raise ProgramError(
            f"layers.dynamic_rnn got new memories of shapes {shapes[0]}, expected {shapes[1]}, as "
            "at the first word. The next word is computed with them. Let the step return memories "
            "nested and shaped as it gets them."
        )
    for value, memory in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        # Floats are rounded to the memory's; a float in an integer would lose more.
        to_float = jnp.issubdtype(memory.dtype, jnp.floating)
        if not to_float and jnp.result_type(value, memory) != memory.dtype:
            raise ProgramError(
                f"layers.dynamic_rnn got a new memory of dtype {jnp.result_type(value)}, expected "
                f"{memory.dtype}, as at the first word. It would be cut to it. Begin with zeros of "
                "the new memory's dtype."
            )

"""Precision and recall of tagged chunks, such as names in a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import ProgramError, check_choice, check_int, check_number
from penstock._program import sequences
from penstock.layers.words import are_classes, check_ids, cut_alike, shift_words

ChunkScheme = Literal["IOB", "IOE", "IOBES", "plain"]

_LETTERS: dict[str, str] = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "I"}
"""The tags of a chunk type, in the order of their numbers."""


def chunk_eval(
    input: sequences.Sequence,
    label: sequences.Sequence,
    chunk_scheme: ChunkScheme,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the precision, recall and F1 score of predicted chunks, and the counts behind them.

    A tag is `chunk_type * num_tags + tag`. The tags of the schemes are, in this order, B and I for
    `"IOB"`; I and E for `"IOE"`; B, I, E and S for `"IOBES"`; `"plain"` has one tag. The tag
    `num_chunk_types * num_tags` is a word outside all chunks. A chunk is correct if its type, first
    word and last word are. A tag that cannot continue the previous chunk, such as I after another
    type, starts a new one. Chunks are counted over the batch. A ratio with denominator 0 is 0. If a
    tag is out of range or lengths differ in any example, all three are nan. Source: Fluid's
    `chunk_eval`, and the script `conlleval` of CoNLL-2000.

    Arguments:
      input: predicted tags, a sequence `[B, T, 1]`, usually from `crf_decoding`.
      label: true tags, a sequence `[B, T, 1]`.
      excluded_chunk_types: chunk types that are not counted.

    Returns:
      Six scalars: precision, recall, F1 score, and the numbers of predicted, true and correct
      chunks.

    >>> tags = sequences.Sequence(jnp.array([[0, 1, 4, 2]]), jnp.array([4]))  # A A - B
    >>> right = tags.with_values(jnp.array([[0, 1, 4, 0]]))  # A A - A
    >>> [float(each) for each in chunk_eval(tags, right, "IOB", num_chunk_types=2)]
    [0.5, 0.5, 0.5, 2.0, 2.0, 1.0]
    """
    check_choice("layers.chunk_eval got chunk_scheme=", chunk_scheme, tuple(_LETTERS))
    excluded = _check_types(num_chunk_types, excluded_chunk_types or ())
    predicted, true = cut_alike(
        check_ids("chunk_eval", "an input", input), check_ids("chunk_eval", "labels", label)
    )
    letters = _LETTERS[chunk_scheme]
    chunks = _find_chunks(predicted, letters, num_chunk_types, excluded)
    wanted = _find_chunks(true, letters, num_chunk_types, excluded)
    is_right = chunks.begins & wanted.begins & (chunks.types == wanted.types)
    is_right &= chunks.ends == wanted.ends
    num_tags = len(letters) * num_chunk_types + 1
    is_good = are_classes(predicted, num_tags) & are_classes(true, num_tags)
    is_good &= predicted.lengths == true.lengths
    # [B, 4]: one sum, and so one message between devices.
    judged = (chunks.begins, wanted.begins, is_right, ~is_good[:, None])
    counts = jnp.stack([jnp.sum(flags, axis=1, dtype=jnp.int32) for flags in judged], axis=1)
    num_found, num_wanted, num_right, num_bad = jnp.sum(counts, axis=0)
    precision, recall = _divide(num_right, num_found), _divide(num_right, num_wanted)
    f1 = _divide(2 * num_right, num_found + num_wanted)
    scores = [jnp.where(num_bad > 0, jnp.nan, ratio) for ratio in (precision, recall, f1)]
    return (scores[0], scores[1], scores[2], num_found, num_wanted, num_right)


class _Chunks(NamedTuple):
    """Where chunks begin that count, and the last word and type of each word's: `[B, T]`."""

    begins: jax.Array
    ends: jax.Array
    types: jax.Array


def _find_chunks(
    tags: sequences.Sequence, letters: str, num_types: int, excluded: Sequence[int]
) -> _Chunks:
    outside = num_types * len(letters)
    is_inside = tags.mask & (tags.values >= 0) & (tags.values < outside)
    ids = jnp.where(is_inside, tags.values, outside)
    types, marks = ids // len(letters), ids % len(letters)
    (before,), (last_marks,) = shift_words(types, [-1], num_types), shift_words(marks, [-1])
    # Between two words of one type a chunk begins by B or S, and behind E or S.
    opens = jnp.asarray(np.array([letter in "BS" for letter in letters]))
    closes = jnp.asarray(np.array([letter in "ES" for letter in letters]))
    begins = is_inside & ((types != before) | opens[marks] | closes[last_marks])
    # A chunk goes on to the word before the next beginning, or before the next outside.
    is_last = jnp.concatenate([(begins | ~is_inside)[:, 1:], jnp.ones_like(begins[:, :1])], axis=1)
    length = ids.shape[1]
    places = lax.broadcasted_iota(jnp.int32, ids.shape, 1)
    ends = lax.cummin(jnp.where(is_last, places, length), axis=1, reverse=True)
    for chunk_type in excluded:
        begins = begins & (types != chunk_type)
    return _Chunks(begins, ends, types)


def _divide(count: jax.Array, total: jax.Array) -> jax.Array:
    return count.astype(jnp.float32) / jnp.maximum(total, 1).astype(jnp.float32)


def _check_types(num_chunk_types: int, excluded: Sequence[int]) -> tuple[int, ...]:
    check_int("layers.chunk_eval got num_chunk_types=", num_chunk_types, 1, error=ProgramError)
    for kind in excluded:
        thing, why = "layers.chunk_eval got the excluded type ", "Tags outside of chunks are none."
        check_number(thing, kind, f"[0, {num_chunk_types - 1}]", why, ProgramError)
    return tuple(excluded)

"""Beam search a step at a time, as in Fluid, and what whole searches are made of."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from penstock._errors import ProgramError, check_count
from penstock.layers import arguments

T = TypeVar("T")


class Sentences(NamedTuple):
    """Hold the sentences that a beam search found, the best of each example first.

    There are K beams, and at most S words in a sentence.

    Attributes:
      ids: `[B, K, S]`, int32; after the end of a sentence, `end_id`.
      lengths: `[B, K]`, int32, including `end_id`; 0 where there are fewer sentences than beams.
      scores: `[B, K]`, float32; -inf where there is no sentence.

    >>> sentences = Sentences(jnp.array([[[4, 2, 0]]]), jnp.array([[3]]), jnp.array([[-1.5]]))
    >>> sentences.ids[0, 0, : sentences.lengths[0, 0]].tolist()
    [4, 2, 0]
    """

    ids: jax.Array
    lengths: jax.Array
    scores: jax.Array


def beam_search(
    pre_ids: jax.Array,
    pre_scores: jax.Array,
    ids: jax.Array | None,
    scores: jax.Array,
    beam_size: int,
    end_id: int,
    level: int = 0,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Extend the best sentences by one word, which is one step of a beam search.

    For each example, the `beam_size` candidates with the highest scores are kept, best first. Ties
    go to the lower beam, then to the earlier candidate. A beam whose last word is `end_id` has one
    candidate: itself, with its old score. If there are fewer candidates than beams, the other beams
    have a score of -inf.

    Source: Fluid's `beam_search`. There, beams are the levels of a LoD tensor. Here they are an
    axis, beams are kept when all have ended, and their parents are returned too. Use the parents to
    reorder what belongs to the beams, such as `[B, K]` with `jnp.take_along_axis`.

    Arguments:
      pre_ids: the last words of the beams, `[B, J]`. `J` may be 1 at the first step.
      pre_scores: the scores of the beams, `[B, J]`.
      ids: the candidates for the next word, `[B, J, C]`; None if candidate c is word c.
      scores: the scores of the extended sentences, `[B, J, C]`: `pre_scores` plus the log
        probability of the candidate.
      level: as in Fluid; only level 0 exists.
      name: as in Fluid; there are no parameters.

    Returns:
      The words `[B, beam_size]`, int32; their scores `[B, beam_size]`; and their parents, the beams
      that they extend, `[B, beam_size]`, int32.

    >>> words, scores, parents = beam_search(
    ...     jnp.array([[1, 0]]),
    ...     jnp.array([[-1.0, -1.5]]),
    ...     jnp.array([[[1, 2], [1, 2]]]),
    ...     jnp.array([[[-1.25, -3.0], [-1.6, -1.6]]]),
    ...     beam_size=2,
    ...     end_id=0,
    ... )
    >>> words.tolist(), scores.tolist(), parents.tolist()
    ([[1, 0]], [[-1.25, -1.5]], [[0, 1]])
    """
    check_count("layers.beam_search: beam_size", beam_size, 1)
    if level:
        raise ProgramError(
            f"layers.beam_search got level={level}, expected 0. Beams are an axis here and no "
            "levels. Leave it out."
        )
    scores, pre_scores = jnp.asarray(scores), jnp.asarray(pre_scores)
    pre_ids = arguments.integers("beam_search", "pre_ids", pre_ids)
    if ids is None:
        ids = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    ids = arguments.integers("beam_search", "ids", ids)
    _check_candidates(pre_ids, pre_scores, ids, scores, beam_size)
    no_penalties = jnp.ones_like(pre_scores)
    return select_beams(pre_ids == end_id, pre_scores, ids, scores, beam_size, end_id, no_penalties)


def _check_candidates(
    pre_ids: jax.Array, pre_scores: jax.Array, ids: jax.Array, scores: jax.Array, beam_size: int
) -> None:
    shapes = [x.shape for x in (pre_ids, pre_scores, ids, scores)]
    is_one_of_each = scores.ndim == 3 and shapes == [scores.shape[:2]] * 2 + [scores.shape] * 2
    if not is_one_of_each:
        raise ProgramError(
            f"layers.beam_search got pre_ids, pre_scores, ids and scores of shapes {shapes}, "
            "expected [B, J], [B, J], [B, J, C] and [B, J, C]. Each of the J beams has C "
            "candidates. Reshape them."
        )
    if beam_size > math.prod(scores.shape[1:]):
        raise ProgramError(
            f"layers.beam_search got beam_size={beam_size} and {scores.shape[1]} beams of "
            f"{scores.shape[2]} candidates, expected at least as many candidates as beams. Give "
            "more candidates, or make the beam smaller."
        )


def select_beams(
    is_kept: jax.Array,
    pre_scores: jax.Array,
    ids: jax.Array,
    scores: jax.Array,
    beam_size: int,
    end_id: int,
    penalties: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return words, scores and parents `[B, beam_size]`, best first.

    Arguments:
      is_kept: beams that have but themselves to offer, `[B, J]`.
      penalties: `[B, J]`, what the scores of their candidates are divided by to be compared.
    """
    batch, _, width = scores.shape
    is_first = lax.broadcasted_iota(jnp.int32, scores.shape, 2) == 0
    itself = jnp.where(is_first, pre_scores[..., None], -jnp.inf)
    scores = jnp.where(is_kept[..., None], itself, scores)
    words = jnp.where(is_kept[..., None], end_id, ids).astype(jnp.int32)
    ranks = scores / penalties[..., None]
    _, chosen = lax.top_k(ranks.reshape(batch, -1), beam_size)

    def pick(x: jax.Array) -> jax.Array:
        return pick_beams(x.reshape(batch, -1), chosen)

    return pick(words), pick(scores), chosen // width


def pick_beams(x: jax.Array, beams: jax.Array) -> jax.Array:
    """Return of each example's beams `[B, J, ...]` those of numbers `[B, K]`."""
    return jax.vmap(lambda row, numbers: jnp.take(row, numbers, axis=0))(x, beams)


def beam_search_decode(
    ids: jax.Array,
    scores: jax.Array,
    parents: jax.Array,
    beam_size: int,
    end_id: int,
    name: str | None = None,
) -> Sentences:
    """Trace the sentences of a beam search back from its last step.

    A sentence includes its first `end_id` and ends there. Source: Fluid's `beam_search_decode`,
    which reads the parents from the levels of LoD tensors and returns a score for each word. Here
    a sentence has one score, that of its last word.

    Arguments:
      ids: the words that each step chose, `[S, B, K]`, as `lax.scan` stacks them.
      scores, parents: the scores and parents of each step, `[S, B, K]`.
      beam_size: `K`.
      name: as in Fluid; there are no parameters.

    Returns:
      The sentences, best first. Ties go to the lower beam.

    >>> ids = jnp.array([[[3, 5]], [[4, 0]]])
    >>> scores = jnp.array([[[-1.0, -2.0]], [[-2.5, -2.25]]])
    >>> sentences = beam_search_decode(ids, scores, jnp.array([[[0, 1]], [[0, 0]]]), 2, end_id=0)
    >>> sentences.ids.tolist(), sentences.lengths.tolist(), sentences.scores.tolist()
    ([[[3, 0], [3, 4]]], [[2, 2]], [[-2.25, -2.5]])
    """
    scores = jnp.asarray(scores)
    ids = arguments.integers("beam_search_decode", "ids", ids).astype(jnp.int32)
    parents = arguments.integers("beam_search_decode", "parents", parents).astype(jnp.int32)
    shapes = [x.shape for x in (ids, scores, parents)]
    is_stack = ids.ndim == 3 and ids.shape[0] > 0 and ids.shape[2] == beam_size
    if not is_stack or len(set(shapes)) > 1:
        raise ProgramError(
            f"layers.beam_search_decode got ids, scores and parents of shapes {shapes} and "
            f"beam_size={beam_size}, expected three of shape [S, B, {beam_size}], of one step or "
            "more. Each step chooses a word for each beam. Stack what the steps return."
        )
    best, order = lax.top_k(scores[-1], beam_size)
    words = trace_back(ids, parents, order)
    is_end = words == end_id
    ends = jnp.where(jnp.any(is_end, axis=2), jnp.argmax(is_end, axis=2) + 1, ids.shape[0])
    return finish_sentences(words, ends, best, end_id)


def trace_back(ids: jax.Array, parents: jax.Array, beams: jax.Array) -> jax.Array:
    """Return the words that led to the last beams of numbers `[B, K]`, `[B, K, S]`."""

    def go_back(beams: jax.Array, turn: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        words, before = turn
        return pick_beams(before, beams), pick_beams(words, beams)

    _, words = lax.scan(go_back, beams, (ids, parents), reverse=True)
    return jnp.moveaxis(words, 0, 2)


def finish_sentences(
    words: jax.Array, lengths: jax.Array, scores: jax.Array, end_id: int
) -> Sentences:
    """Return sentences with nothing behind their ends; none where the score is -inf."""
    lengths = jnp.where(scores == -jnp.inf, 0, lengths).astype(jnp.int32)
    places = lax.broadcasted_iota(jnp.int32, words.shape, 2)
    return Sentences(jnp.where(places < lengths[..., None], words, end_id), lengths, scores)


def tile_beams(tree: T, beam_size: int) -> T:
    """Repeat each example's row for its beams, in all arrays of a pytree.

    Use it for arrays that the `step` of `beam_decode` reads besides its state, such as the output
    of an encoder.

    Arguments:
      tree: a pytree of arrays `[B, ...]`, or a `Sequence`. Scalars stay as they are.

    Returns:
      The tree with arrays `[B * beam_size, ...]`. The rows of an example are next to each other.

    >>> tile_beams(jnp.array([1, 2]), 3).tolist()
    [1, 1, 1, 2, 2, 2]
    """
    check_count("layers.tile_beams: beam_size", beam_size, 1)

    def repeat(leaf: jax.Array) -> jax.Array:
        x = jnp.asarray(leaf)
        if not x.ndim:
            return x
        rows = jnp.broadcast_to(x[:, None], (x.shape[0], beam_size, *x.shape[1:]))
        return rows.reshape(x.shape[0] * beam_size, *x.shape[1:])

    return jax.tree.map(repeat, tree)

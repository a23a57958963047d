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
    """The sentences of a beam search, the best of each example first.

    Attributes:
      ids: `[B, K, S]`, int32; behind a sentence's end stands `end_id`.
      lengths: `[B, K]`, int32, `end_id` counted. 0 where there are fewer sentences than beams.
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
    """Choose the best sentences one word longer: one step of a beam search.

    Of all candidates of an example's beams the `beam_size` of the highest scores stay, best first;
    of equal scores that of the lower beam, and then that which stands in front. A beam whose last
    word is `end_id` has one candidate, itself, with the score it had. Where there are fewer
    candidates than beams, the rest have a score of -inf.

    Source: Fluid's `beam_search`, whose beams stand in the levels of a LoD tensor. Here they are an
    axis, none is dropped when all have ended, and the parents are returned too. Reorder by them
    what goes with the beams: `jnp.take_along_axis` for `[B, K]`.

    Arguments:
      pre_ids: last words of the beams, `[B, J]`. `J` may be 1 at the first step.
      pre_scores: their scores, `[B, J]`.
      ids: candidates for the next word, `[B, J, C]`; None where candidate c is word c.
      scores: of the sentences with them, `[B, J, C]`: what `pre_scores` has and the candidate's log
        probability added.
      level: as in Fluid; there is but level 0.
      name: as in Fluid; there are no parameters.

    Returns:
      Words `[B, beam_size]`, int32; scores `[B, beam_size]`; and the beams that they continue,
      `[B, beam_size]`, int32.

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
    """Read sentences out of the steps of a beam search, back from the last one.

    A sentence ends with its first `end_id`, which is a part of it. Source: Fluid's
    `beam_search_decode`, which finds the parents in the levels of LoD tensors and gives each word
    of a sentence a score; here a sentence has that of its last word.

    Arguments:
      ids: the words that each step chose, `[S, B, K]`, as `lax.scan` stacks them.
      scores, parents: those of the steps, `[S, B, K]`.
      beam_size: `K`.
      name: as in Fluid; there are no parameters.

    Returns:
      The sentences, best first; of equal scores that of the lower beam.

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

    For what the `step` of `beam_decode` reads beside its state, such as an encoder's output.

    Arguments:
      tree: arrays `[B, ...]`, or a `Sequence`; what has no axes stays as it is.

    Returns:
      Arrays `[B * beam_size, ...]`; the rows of an example stand together.

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

"""Linear chain conditional random fields: the loss of a path of tags, and the best path."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program import sequences
from penstock._program.frame import Frame, current_frame, widen
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, parameter, resolve
from penstock.layers.recurrent import Hold, scan_words
from penstock.layers.words import (
    are_classes,
    check_ids,
    check_scores,
    choose_examples,
    cut_alike,
    match_length,
)


def linear_chain_crf(
    input: sequences.Sequence,
    label: sequences.Sequence,
    param_attr: Attr = None,
    name: str | None = None,
) -> jax.Array:
    """Return the negative log likelihood of paths of tags, per example (Lafferty et al. 2001).

    The score of a path is the sum of its emissions, its transitions, and the weights of its first
    and last tag. Its likelihood is the softmax of the scores over all paths. An empty sequence
    costs 0. A tag outside the classes, or a label of another length, gives nan. Parameter: `w`
    `[C + 2, C]`, Xavier uniform: row 0 has the weights of starting with a tag, row 1 those of
    ending with it, row `2 + i` those of a transition from tag `i`. It is computed in float32 or
    wider. Source: Fluid's `linear_chain_crf`, which returns the negative log likelihood too.

    Arguments:
      input: emissions, a sequence `[B, T, C]`.
      label: tags, a sequence `[B, T, 1]`.
      param_attr: for `w`. Give it a name to share the parameter with `crf_decoding`.

    Returns:
      `[B, 1]`.

    >>> def program():
    ...     words = layers.data("words", [3], lod_level=1)
    ...     tags = layers.data("tags", [1], "int32", lod_level=1)
    ...     return layers.linear_chain_crf(words, tags, param_attr=jax.nn.initializers.zeros)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> feed = {"words": [[[0.0, 0.0, 0.0]] * 2], "tags": [[1, 2]]}
    >>> round(float(jnp.exp(-builder.infer(builder.init(), feed)[0, 0])), 4)  # one of 9 paths
    0.1111
    """
    frame = current_frame("linear_chain_crf")
    path = frame.names.layer("linear_chain_crf", name)
    emissions = check_scores("linear_chain_crf", "an input", input)
    tags = check_ids("linear_chain_crf", "labels", label)
    num_tags = emissions.values.shape[-1]
    shape = [num_tags + 2, num_tags]
    w = widen(parameter(frame, path, "w", shape, XAVIER, param_attr, layer="linear_chain_crf"))
    emissions, tags = cut_alike(emissions, tags)
    loss = _log_partition(emissions, w) - _score(emissions, tags, w)
    # Not by the mask of a sum: all paths of no words would cost what one word of padding does.
    loss = choose_examples(emissions.lengths > 0, loss, 0.0)
    loss = choose_examples(are_classes(tags, num_tags), loss, jnp.nan)
    return sequences.spoil_unequal(loss, [emissions, tags]).reshape(-1, 1)


def crf_decoding(
    input: sequences.Sequence, param_attr: Attr, label: sequences.Sequence | None = None
) -> sequences.Sequence:
    """Return the most likely path of tags, found by Viterbi's algorithm (1967).

    Ties go to the lower tag. There are no gradients. It uses the parameter of the
    `linear_chain_crf` that `param_attr` names. If the program has that parameter already, its
    learning rate and other attributes do not change. Source: Fluid's `crf_decoding`.

    Arguments:
      input: emissions, a sequence `[B, T, C]`.
      param_attr: the name given to `linear_chain_crf`, in the same scope.
      label: tags to compare the path with, a sequence `[B, T, 1]`.

    Returns:
      A sequence `[B, T, 1]`, int32: the tags; or, with `label`, 1 where the tag equals the label
      and 0 elsewhere.

    >>> def program():
    ...     words = layers.data("words", [3], lod_level=1)
    ...     zeros = layers.ParamAttr(name="crfw", initializer=jax.nn.initializers.zeros)
    ...     return layers.crf_decoding(words, zeros)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"words": [[[0.0, 0.0, 1.0], [5.0, 0.0, 1.0]]]})[0].tolist()
    [[2], [0]]
    """
    frame = current_frame("crf_decoding")
    emissions = check_scores("crf_decoding", "an input", input)
    num_tags = emissions.values.shape[-1]
    w = widen(_named_transitions(frame, num_tags, param_attr))
    tags = sequences.Sequence(_best_path(emissions, w), emissions.lengths)
    if label is not None:
        wanted = check_ids("crf_decoding", "labels", label)
        # A word that has no label is wrong, also where labels are padded to less than the words.
        ids = jnp.where(wanted.mask, wanted.values, -1)
        is_right = tags.values + 1 == match_length(ids + 1, tags.max_length)
        tags = tags.with_values(is_right.astype(jnp.int32))
    return tags.with_values(tags.values[..., None])


def _named_transitions(frame: Frame, num_tags: int, attr: Attr) -> jax.Array:
    """Return the parameter of a `linear_chain_crf`, with the attributes it was made with."""
    resolved = resolve("crf_decoding", "param_attr", attr)
    if resolved.name is None:
        raise ProgramError(
            "layers.crf_decoding got param_attr without a name, expected the name of a "
            "linear_chain_crf's. It finds the best path by the weights that were learned. Use "
            'param_attr=ParamAttr(name="crfw") in both.'
        )
    shape: list[int] = [num_tags + 2, num_tags]
    path: Path = (*frame.names.scope.path, resolved.name)
    spec = frame.specs.get(path)
    # Fluid's book gives the loss a learning rate, and this layer only the name.
    if spec is not None and spec.shape == tuple(shape):
        return frame.parameter(spec)
    return parameter(frame, path[:-1], "w", shape, XAVIER, resolved, layer="crf_decoding")


def _score(emissions: sequences.Sequence, tags: sequences.Sequence, w: jax.Array) -> jax.Array:
    num_tags = w.shape[1]
    mask = emissions.mask
    ids = jnp.clip(tags.values, 0, num_tags - 1)
    picked = jnp.take_along_axis(emissions.values, ids[..., None], axis=2)[..., 0]
    # The first word has no transition into it; that into padding does not count.
    moves = jnp.where(mask[:, 1:], w[2 + ids[:, :-1], ids[:, 1:]], 0)
    last = jnp.maximum(emissions.lengths - 1, 0)
    ends = jnp.take_along_axis(ids, last[:, None], axis=1)[:, 0]
    inside = jnp.sum(jnp.where(mask, picked, 0), axis=1) + jnp.sum(moves, axis=1)
    return inside + w[0, ids[:, 0]] + w[1, ends]


def _log_partition(emissions: sequences.Sequence, w: jax.Array) -> jax.Array:
    """Return the logarithm of the sum over all paths of the exponential of their scores, `[B]`."""
    transitions = w[None, 2:]

    # Recomputed for the gradient: `[B, C, C]` of every word would be kept.
    @jax.checkpoint
    def add_word(scores: jax.Array, emission: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(scores[:, :, None] + transitions, axis=1) + emission

    def step(scores: jax.Array, emission: jax.Array, hold: Hold) -> tuple[jax.Array, None]:
        return hold(add_word(scores, emission), scores), None

    first = w[None, 0] + emissions.values[:, 0]
    scores, _ = scan_words(step, first, emissions.values[:, 1:], emissions.lengths - 1)
    return jax.nn.logsumexp(scores + w[None, 1], axis=1)


def _best_path(emissions: sequences.Sequence, w: jax.Array) -> jax.Array:
    transitions, later_lengths = w[None, 2:], emissions.lengths - 1

    def forward(scores: jax.Array, emission: jax.Array, hold: Hold) -> tuple[jax.Array, jax.Array]:
        paths = scores[:, :, None] + transitions
        best = jnp.max(paths, axis=1) + emission
        return hold(best, scores), jnp.argmax(paths, axis=1).astype(jnp.int32)

    def backward(tag: jax.Array, before: jax.Array, hold: Hold) -> tuple[jax.Array, jax.Array]:
        return hold(jnp.take_along_axis(before, tag[:, None], axis=1)[:, 0], tag), tag

    first = w[None, 0] + emissions.values[:, 0]
    scores, before = scan_words(forward, first, emissions.values[:, 1:], later_lengths)
    last = jnp.argmax(scores + w[None, 1], axis=1).astype(jnp.int32)
    first_tag, later = scan_words(backward, last, before, later_lengths, is_reverse=True)
    return jnp.concatenate([first_tag[:, None], later], axis=1)

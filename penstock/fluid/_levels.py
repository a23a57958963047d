"""Layers on tensors of two levels: each works on the last level, as Fluid's did."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from penstock import layers
from penstock._errors import ProgramError
from penstock._program.sequences import NestedSequence, Sequence
from penstock.fluid import sequence_moves

P = ParamSpec("P")
R = TypeVar("R")

OF_WORDS = (
    *("embedding", "fc", "one_hot", "dropout", "batch_norm", "layer_norm", "topk", "mean"),
    *("accuracy", "concat", "cast", "scale", "sums", "reshape", "cos_sim", "l2_normalize"),
    *(f"elementwise_{name}" for name in ("add", "div", "max", "min", "mul", "pow", "sub")),
    *("elu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "log_softmax", "logsigmoid"),
    *("relu", "relu6", "selu", "sigmoid", "softmax", "softplus", "softsign", "swish", "tanh"),
    *("cross_entropy", "softmax_with_cross_entropy", "sigmoid_cross_entropy_with_logits"),
    *("square_error_cost", "huber_loss", "nce", "hsigmoid"),
    *("dynamic_gru", "dynamic_lstm", "dynamic_lstmp", "row_conv", "sequence_conv"),
    *("linear_chain_crf", "crf_decoding", "chunk_eval", "warpctc", "ctc_greedy_decoder"),
    *("sequence_pool", "sequence_first_step", "sequence_last_step", "sequence_softmax"),
    *("sequence_concat", "sequence_enumerate", "sequence_reshape", "sequence_reverse"),
)
"""The layers of `fluid.layers` that take tensors of two levels."""


def on_last_level(layer: Callable[P, R]) -> Callable[P, R]:
    """Return a layer that also takes sequences of sequences, and works on the inner ones.

    What it makes of each inner sequence is a word of the outer one: a pool of a document's
    sentences is a sequence of vectors. A sequence beside them has a word for each inner one.

    >>> text = NestedSequence(jnp.ones([1, 2, 3, 1]), jnp.array([[3, 1]]), jnp.array([2]))
    >>> on_last_level(layers.sequence_pool)(text, "sum").values.tolist()
    [[[3.0], [1.0]]]
    """

    @functools.wraps(layer)
    def apply(*args: P.args, **kwargs: P.kwargs) -> R:
        nested = _list_nested([*args, *kwargs.values()])
        if not nested:
            return layer(*args, **kwargs)
        like = nested[0]
        if any(sequence.lengths.shape != like.lengths.shape for sequence in nested):
            shapes = ", ".join(str(sequence.lengths.shape) for sequence in nested)
            raise ProgramError(
                f"fluid.layers.{layer.__name__} got inner sequences of shapes {shapes}, expected "
                "as many in each. They are taken one beside the other. Feed each example as many "
                "inner sequences under both names."
            )
        of_words: Any = layer
        made = of_words(
            *(_take_rows(value, like) for value in args),
            **{name: _take_rows(value, like) for name, value in kwargs.items()},
        )
        return jax.tree.map(
            lambda leaf: _put_back(leaf, like),
            made,
            is_leaf=lambda node: isinstance(node, Sequence),
        )

    return apply


def _list_nested(values: list[Any]) -> list[NestedSequence]:
    many = [
        item for value in values for item in (value if isinstance(value, list | tuple) else [value])
    ]
    return [item for item in many if isinstance(item, NestedSequence)]


def _take_rows(value: object, like: NestedSequence) -> object:
    """Return an argument with a row for each inner sequence."""
    if isinstance(value, list | tuple):
        return [_take_rows(item, like) for item in value]
    if isinstance(value, NestedSequence):
        return value.inner
    if isinstance(value, Sequence):
        words, _ = layers.sequence_pad(value, 0, maxlen=like.lengths.shape[1])
        return words.reshape(-1, *words.shape[2:])
    return value


def _put_back(made: object, like: NestedSequence) -> object:
    """Return what a layer made of the inner sequences, each again in its example."""
    if isinstance(made, Sequence):
        return like.with_inner(made)
    # A mean over all words has no rows.
    if isinstance(made, jax.Array) and made.shape[:1] == (like.lengths.size,):
        return like.outer(made)
    return made


def sequence_expand(
    x: jax.Array | Sequence,
    y: Sequence | NestedSequence,
    ref_level: int = -1,
    name: str | None = None,
) -> Sequence | NestedSequence:
    """Repeat what there is of each example of `x` as `y` says; see `penstock.layers`.

    Arguments:
      x: `[B, ...]`, or a sequence of one word an example; of a `y` of two levels and its last level
        a sequence of one word for each inner sequence.
      y: of one level or two.
      ref_level: the level that counts, 0 being the first, -1 the last.

    >>> text = NestedSequence(jnp.ones([1, 2, 3, 1]), jnp.array([[3, 1]]), jnp.array([2]))
    >>> sequence_expand(jnp.array([[7.0]]), text, ref_level=0).cut()[0].tolist()
    [[7.0], [7.0]]
    """
    if not isinstance(y, NestedSequence):
        return sequence_moves.sequence_expand(x, y, ref_level, name)
    if ref_level == 0:
        return sequence_moves.sequence_expand(x, y.outer(jnp.zeros([y.lengths.size])), name=name)
    # The last level, 1, is -1 to a layer that sees one level.
    last: Any = on_last_level(sequence_moves.sequence_expand)
    return last(x, y, -1 if ref_level == 1 else ref_level, name)

"""What of a batch a metric counts: rows of inputs and labels, and their weights."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from penstock._errors import ProgramError
from penstock._program.sequences import Sequence
from penstock.layers.arguments import widen_bytes

Values: TypeAlias = "ArrayLike | Sequence"
"""An array, or a sequence, each word of which counts."""

Weights: TypeAlias = "Values | None"
"""A weight for each label or example; None is 1 each."""


class Rows(NamedTuple):
    """Rows of a batch; where weights are 0 the others are too. `shape` was that of the labels."""

    input: jax.Array
    label: jax.Array
    weights: jax.Array
    shape: tuple[int, ...]


def read_rows(
    owner: str,
    input: Values,
    label: Values,
    sample_weight: Weights,
    ignore_index: float | None,
    takes: Literal["numbers", "classes", "both"] = "both",
) -> Rows:
    """Return the rows of a batch, or raise.

    `input` is as the labels, `[B, ...]` or `[B, ..., 1]`, or `[B, ..., C]`; `takes` says whether
    each label has one number, one for every class, or any of the two.
    """
    lengths = [each.max_length for each in (input, label) if isinstance(each, Sequence)]
    masks = [each.mask for each in (input, label) if isinstance(each, Sequence)]
    length = min(lengths, default=None)
    input, label = (
        each.values[:, :length] if isinstance(each, Sequence) else jnp.asarray(each)
        for each in (input, label)
    )
    if label.shape in ((*input.shape, 1), (*input.shape[:-1], 1)) and input.shape != label.shape:
        label = label[..., 0]
    elif input.shape == (*label.shape, 1):
        input = input[..., 0]
    if not label.ndim or label.shape not in (input.shape, input.shape[:-1]):
        raise ProgramError(
            f"metrics.{owner} got an input of shape {input.shape} and labels of shape "
            f"{label.shape}, expected equal shapes, or inputs with an axis of classes behind. A "
            "row has one label. Reshape one of them."
        )
    has_classes = input.ndim > label.ndim
    if takes == ("numbers" if has_classes else "classes"):
        expected = "one for each class" if takes == "classes" else "one"
        raise ProgramError(
            f"metrics.{owner} got {input.shape[-1] if has_classes else 1} numbers for each label, "
            f"expected {expected}. It got an input of shape {input.shape} and labels of shape "
            f"{label.shape}. Pass scores [B, ..., C] where it needs those of all classes."
        )
    weights = jnp.ones(label.shape, jnp.float32)
    if sample_weight is not None:
        weights = spread_weights(owner, sample_weight, label.shape).astype(jnp.float32)
    counts = weights != 0
    for mask in masks:
        counts &= spread_weights(owner, mask[:, :length], label.shape)
    if ignore_index is not None:
        counts &= widen_bytes(label) != ignore_index
    # Selected, not multiplied by 0: what is left out may be nan.
    weights, label = jnp.where(counts, weights, 0), jnp.where(counts, label, 0)
    input = jnp.where(counts[..., None] if has_classes else counts, input, 0)
    if jnp.issubdtype(input.dtype, jnp.floating):
        input = input.astype(jnp.float32)
    shape = (-1, input.shape[-1]) if has_classes else (-1,)
    return Rows(
        input.reshape(shape),
        label.reshape(-1),
        weights.reshape(-1),
        (label.size,) if masks else label.shape,
    )


def spread_weights(owner: str, weight: Values, shape: tuple[int, ...]) -> jax.Array:
    """Return weights of the first axes of a shape, spread over the others."""
    weight = weight.values if isinstance(weight, Sequence) else jnp.asarray(weight)
    while weight.ndim > 1 and weight.shape != shape[: weight.ndim] and weight.shape[-1] == 1:
        weight = weight[..., 0]
    if (shape and not weight.ndim) or weight.shape != shape[: weight.ndim]:
        raise ProgramError(
            f"metrics.{owner} got a sample_weight of shape {weight.shape} for labels of shape "
            f"{shape}, expected {shape}, or its first axes. Each label has one weight, or each "
            "example. Reshape the weights."
        )
    weight = weight.reshape(*weight.shape, *(1,) * (len(shape) - weight.ndim))
    return jnp.broadcast_to(weight, shape)


def compare_classes(ids: jax.Array, num_classes: int) -> jax.Array:
    """Return whether each of the ids `[N]` is each of the classes, `[N, C]`."""
    # Compared, not indexed: it melts into the sum after it, and a class that there is not is none.
    return ids[:, None] == jnp.arange(num_classes)[None, :]

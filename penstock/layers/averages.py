"""Means over the valid examples of the global batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program.frame import current_frame
from penstock.layers import arguments


def mean(x: jax.Array) -> jax.Array:
    """Return the mean over the valid examples of the global batch, a scalar.

    Examples that pad a short batch do not count, and every example counts alike on however many
    devices. An array without a batch axis is averaged as it is. Source: Fluid's `mean`.

    Arguments:
      x: `[B, ...]`, or `[B * n, ...]` where rows of one example follow each other.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.mean(layers.data("x", shape=[2])))
    >>> float(builder.infer(builder.init(), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}))
    3.5
    """
    return current_frame("mean").examples.mean(x)


def accuracy(input: jax.Array, label: jax.Array, k: int = 1) -> jax.Array:
    """Return the share of valid examples whose label is among the `k` highest scores, a scalar.

    Of equal scores the lower class number is higher. A label that is no class counts as wrong.
    Source: Fluid's `accuracy`.

    Arguments:
      input: scores or probabilities, `[B, ..., C]`.
      label: `[B, ..., 1]` or `[B, ...]`, integers.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> def program():
    ...     return layers.accuracy(layers.data("x", [2]), layers.data("label", [1], "int32"))
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> float(builder.infer(builder.init(), {"x": [[0.9, 0.1], [0.8, 0.2]], "label": [[0], [1]]}))
    0.5
    """
    frame = current_frame("accuracy")
    scores = jnp.asarray(input)
    if not 1 <= k <= scores.shape[-1]:
        raise ProgramError(
            f"layers.accuracy got k={k} and scores of shape {scores.shape}, expected 1 <= k <= "
            f"{scores.shape[-1]}. There are no more classes. Use a smaller k."
        )
    ids = arguments.class_ids("accuracy", label, scores)
    if k == 1:  # the same class that top_k puts first, without its sort
        is_right = jnp.argmax(scores, axis=-1) == ids
    else:
        is_right = jnp.any(jax.lax.top_k(scores, k)[1] == ids[..., None], axis=-1)
    return frame.examples.mean(is_right.astype(jnp.float32))

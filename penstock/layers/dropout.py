"""Dropout of elements, and of whole paths."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, check_choice, check_number
from penstock._program import sequences
from penstock._program.frame import V, current_frame

DropoutImplementation = Literal["upscale_in_train", "downgrade_in_infer"]


def dropout(
    x: V,
    dropout_prob: float,
    name: str | None = None,
    dropout_implementation: DropoutImplementation = "upscale_in_train",
    *,
    training: bool | None = None,
) -> V:
    """Set elements to zero at random (Srivastava et al. 2014).

    In training, each element is dropped with probability `dropout_prob`. With `"upscale_in_train"`
    the kept elements are divided by `1 - dropout_prob` in training, and test and infer return the
    input unchanged. With `"downgrade_in_infer"` they are unchanged in training, and test and infer
    multiply the input by `1 - dropout_prob`.

    The mask depends on the seed, the step, the layer's name and the shape. All iterations of a
    `lax.scan` use the same mask (Gal and Ghahramani 2016), and so do all rows of a `jax.vmap`: call
    it outside for a mask of each example's own. Two calls with the same explicit name share their
    mask. Source: Fluid's `dropout`, whose default is `"downgrade_in_infer"`.

    Arguments:
      x: `[B, ...]`, or a sequence.
      dropout_prob: from 0 to 1.
      training: True drops elements in test and infer too, False never; by default training does,
        and `layers.monte_carlo`. In infer, a mask is the same in every batch.

    Returns:
      The input's shape and dtype.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.dropout(layers.data("x", [2]), 0.5))
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[1.0, 2.0]]
    """
    frame = current_frame("dropout")
    choices = get_args(DropoutImplementation)
    check_choice("layers.dropout got dropout_implementation=", dropout_implementation, choices)
    why = "It is the share of elements that are set to zero. 0.5 drops every second one."
    check_number("layers.dropout got dropout_prob=", dropout_prob, "[0, 1]", why, ProgramError)
    if isinstance(x, sequences.Sequence):
        values = dropout(x.values, dropout_prob, name, dropout_implementation, training=training)
        return x.with_values(values)
    array: Any = jnp.asarray(x)
    # One of numpy's, e.g. of `np.linspace`, would widen half precision.
    keep_prob = 1.0 - float(dropout_prob)
    # Asked for in every mode, so that automatic names agree between the programs.
    path = frame.names.layer("dropout", name)
    upscale = dropout_implementation == "upscale_in_train"
    if not (frame.is_dropping if training is None else training):
        return array if upscale else array * keep_prob
    # Nothing to draw; dividing by 0 would give nan.
    if keep_prob in (0.0, 1.0):
        return array * keep_prob
    # float32 in x64 mode too: draws of another precision are other draws.
    mask = jax.random.bernoulli(frame.layer_key(path), jnp.float32(keep_prob), array.shape)
    dropped: Any = jnp.where(mask, array / keep_prob if upscale else array, 0)
    return dropped


def drop_path(x: jax.Array, drop_prob: float | jax.Array, name: str | None = None) -> jax.Array:
    """Set whole examples of a branch to zero at random (Larsson et al. 2017).

    In training, each example is dropped with probability `drop_prob`, and the kept ones are divided
    by `1 - drop_prob`. Test and infer return the input unchanged. Source: TF-Slim's NASNet.

    Arguments:
      x: `[B, ...]`, the output of a branch that is added to others.
      drop_prob: from 0 to less than 1. It can be an array that changes during training; see
        `layers.global_step`.

    Returns:
      The input's shape and dtype.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.drop_path(layers.data("x", [2]), 0.5))
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[1.0, 2.0]]
    """
    frame = current_frame("drop_path")
    is_number = not isinstance(drop_prob, jax.Array)
    if is_number:
        why = "It is the share of examples whose branch is dropped. 0.2 is usual."
        check_number("layers.drop_path got drop_prob=", drop_prob, "[0, 1)", why, ProgramError)
    x = jnp.asarray(x)
    path = frame.names.layer("drop_path", name)
    if not frame.is_dropping or (is_number and drop_prob == 0):
        return x
    # float32 whatever the input: draws of another precision are other draws.
    keep_prob = jnp.asarray(1.0 - drop_prob, jnp.float32)
    # One draw an example, spread over all else.
    shape = (x.shape[0], *(1,) * (x.ndim - 1))
    mask = jax.random.bernoulli(frame.layer_key(path), keep_prob, shape)
    return jnp.where(mask, x / keep_prob.astype(x.dtype), 0)

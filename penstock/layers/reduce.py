"""Reductions over the valid examples of the global batch, the same on any number of devices.

`dim` names axes as in Fluid; axis 0 is the batch. Reductions over other axes, and of arrays without
a batch axis, are those of `jax.numpy`.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock._errors import ProgramError
from penstock._program.examples import REDUCED_SCOPE, align
from penstock._program.frame import Frame, current_frame
from penstock._program.sequences import Sequence

Axes = int | abc.Sequence[int] | None
"""Axes to reduce, all where it is None."""


def reduce_sum(input: jax.Array | Sequence, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the sum over axes; padding examples do not count.

    Over the batch axis, the examples of all devices are summed, without those that pad a short
    batch. The same in train, test and infer. Source: Fluid's `reduce_sum`.

    Arguments:
      input: `[B, ...]`; or `[B * n, ...]`, with the n rows of each example next to each other; or,
        without `dim`, a sequence, whose words are summed.
      dim: the axis or axes to reduce, by default all; 0 is the batch.
      keep_dim: whether reduced axes are kept, with size 1.

    Returns:
      A scalar, or the shape of `input` without the reduced axes.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> def program():
    ...     return layers.reduce_sum(layers.data("x", [2]), dim=0)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}).tolist()
    [9.0, 12.0]
    """
    if isinstance(input, Sequence) and dim is None and not keep_dim:
        input = input.masked()
    frame, x, axes = _check_array("reduce_sum", input, dim)
    return frame.examples.sum(x, axes, keep_dim)


def reduce_mean(input: jax.Array | Sequence, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the mean over axes; padding examples do not count.

    Over all axes it is `layers.mean`. Source: Fluid's `reduce_mean`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> def program():
    ...     return layers.reduce_mean(layers.data("x", [2]), dim=0)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}).tolist()
    [3.0, 4.0]
    """
    if isinstance(input, Sequence) and dim is None and not keep_dim:
        return current_frame("reduce_mean").examples.mean_words(input)
    frame, x, axes = _check_array("reduce_mean", input, dim)
    return _mean(frame, x, axes, keep_dim)


def reduce_max(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the maximum over axes; padding examples do not count.

    Equal maxima share the gradient equally, as with `jnp.max`. Over the batch axis it cannot be
    used with `gradient_accumulation_steps`. Source: Fluid's `reduce_max`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_max(layers.data("x", [2])))
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    6.0
    """
    return _extremum("reduce_max", input, dim, keep_dim, jnp.max, jax.lax.pmax)


def reduce_min(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the minimum over axes; padding examples do not count.

    Equal minima share the gradient equally, as with `jnp.min`. Over the batch axis it cannot be
    used with `gradient_accumulation_steps`. Source: Fluid's `reduce_min`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_min(layers.data("x", [2])))
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    1.0
    """
    return _extremum("reduce_min", input, dim, keep_dim, jnp.min, jax.lax.pmin)


def reduce_any(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return whether any entry is true over axes; padding examples do not count.

    Over the batch axis it cannot be used with `gradient_accumulation_steps`.

    Arguments:
      input: `[B, ...]`; numbers other than 0 are true.
      dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_any(layers.data("x", [1]) > 4))
    >>> builder.infer(builder.init(), {"x": [[1.0], [3.0], [5.0]]})
    1.0
    """
    is_true = jnp.asarray(input).astype(bool).astype(jnp.int32)
    return _extremum("reduce_any", is_true, dim, keep_dim, jnp.max, jax.lax.pmax).astype(bool)


def reduce_all(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return whether all entries are true over axes; padding examples do not count.

    Over the batch axis it cannot be used with `gradient_accumulation_steps`.

    Arguments:
      input: `[B, ...]`; numbers other than 0 are true.
      dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_all(layers.data("x", [1]) > 4))
    >>> builder.infer(builder.init(), {"x": [[1.0], [3.0], [5.0]]})
    0.0
    """
    is_true = jnp.asarray(input).astype(bool).astype(jnp.int32)
    return _extremum("reduce_all", is_true, dim, keep_dim, jnp.min, jax.lax.pmin).astype(bool)


def reduce_prod(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the product over axes; padding examples do not count.

    Over the batch axis it cannot be used with `gradient_accumulation_steps`. Source: Fluid's
    `reduce_prod`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_prod(layers.data("x", [1])))
    >>> builder.infer(builder.init(), {"x": [[2.0], [3.0], [4.0]]})
    24.0
    """
    frame, x, axes = _check_array("reduce_prod", input, dim)
    if not _is_over_batch(frame, x, axes, "reduce_prod"):
        return jnp.prod(x, axes, keepdims=keep_dim)
    with frame.examples.note(REDUCED_SCOPE):
        # Chosen, so that padding is a factor of 1.
        product = jnp.prod(jnp.where(_valid(frame, x), x, 1), axes, keepdims=keep_dim)
        return jnp.prod(_gather(frame, product[None]), axis=0)


def reduce_var(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the variance over axes; padding examples do not count.

    It is the biased variance, like `jnp.var`. Over the batch axis it cannot be used with
    `gradient_accumulation_steps`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_var(layers.data("x", [1])))
    >>> builder.infer(builder.init(), {"x": [[1.0], [3.0], [5.0], [7.0]]})
    5.0
    """
    return _variance("reduce_var", input, dim, keep_dim)


def reduce_std(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the standard deviation over axes; padding examples do not count.

    It is the square root of `reduce_var`, like `jnp.std`. Over the batch axis it cannot be used
    with `gradient_accumulation_steps`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_std(layers.data("x", [1])))
    >>> builder.infer(builder.init(), {"x": [[1.0], [5.0]]})
    2.0
    """
    return jnp.sqrt(_variance("reduce_std", input, dim, keep_dim))


def reduce_median(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the median over axes; padding examples do not count.

    If the count is even, it is the mean of the two middle values, like `jnp.median`. Over the batch
    axis the whole array is gathered on every device, and it cannot be used with
    `gradient_accumulation_steps`.

    Arguments:
      input, dim, keep_dim: as in `reduce_sum`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.reduce_median(layers.data("x", [1])))
    >>> builder.infer(builder.init(), {"x": [[1.0], [9.0], [2.0]]})
    2.0
    """
    frame, x, axes = _check_array("reduce_median", input, dim)
    if not _is_over_batch(frame, x, axes, "reduce_median"):
        return jnp.median(x, axes, keepdims=keep_dim)
    with frame.examples.note(REDUCED_SCOPE):
        x = x.astype(jnp.result_type(x, jnp.float32))
        reduced = tuple(range(x.ndim)) if axes is None else axes
        kept = [axis for axis in range(x.ndim) if axis not in reduced]
        # Reduced axes in front, in one: a median has no parts that devices could add up.
        rows = jnp.transpose(jnp.where(_valid(frame, x), x, jnp.inf), (*sorted(reduced), *kept))
        rows = rows.reshape(-1, *(x.shape[axis] for axis in kept))
        in_order = jnp.sort(_gather(frame, rows), axis=0)  # padding last, a nan after it
        per_example = rows.shape[0] // frame.examples.batch_size
        # The middle of the valid ones, which infinities of the padding lie behind.
        count = (frame.examples.total_weight * per_example).astype(jnp.int32)
        middle = [jnp.take(in_order, place, axis=0) for place in ((count - 1) // 2, count // 2)]
        # As numpy has it: a nan anywhere is a nan.
        found = jnp.where(jnp.isnan(in_order[-1]), jnp.nan, (middle[0] + middle[1]) / 2)
        shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
        return found.reshape(shape) if keep_dim else found


def _check_array(
    layer: str, input: jax.Array | Sequence, dim: Axes
) -> tuple[Frame, jax.Array, tuple[int, ...] | None]:
    """Return the frame, the array and the axes, none of them negative; None is all."""
    if isinstance(input, Sequence):
        raise ProgramError(
            f"layers.{layer} got a sequence and dim={dim!r}, expected an array: its padding would "
            "count. Use layers.sequence_pool for one result an example, or layers.mean or "
            "layers.reduce_sum over all words."
        )
    frame, x = current_frame(layer), jnp.asarray(input)
    if dim is None:
        return frame, x, None
    axes = [dim] if isinstance(dim, int) else list(dim)
    if not all(isinstance(a, int) and -x.ndim <= a < x.ndim for a in axes):
        raise ProgramError(
            f"layers.{layer} got dim={dim!r} and an array of {x.ndim} axes, expected axes from "
            f"{-x.ndim} to {x.ndim - 1}, or None for all. Axis 0 is the batch."
        )
    return frame, x, tuple(dict.fromkeys(a % x.ndim for a in axes))


def _is_over_batch(frame: Frame, x: jax.Array, axes: tuple[int, ...] | None, layer: str) -> bool:
    """Return whether examples meet in a reduction, which micro-batches could not put together."""
    is_over_batch = bool(frame.examples.count_rows(x)) and (axes is None or 0 in axes)
    if is_over_batch and frame.has_micro_batches and not frame.is_guessing:
        raise ProgramError(
            f"layers.{layer} got a batch that gradient_accumulation_steps cuts into micro-batches, "
            "expected a whole batch: only sums and means of micro-batches are those of the batch. "
            "Reduce with layers.mean or layers.reduce_sum, or leave out the accumulation."
        )
    frame.examples.needs_all_devices |= is_over_batch
    return is_over_batch


def _valid(frame: Frame, x: jax.Array) -> jax.Array:
    """Return which rows are no padding, shaped to meet `x`."""
    return align(frame.examples.row_weights(x.shape[0]) > 0, x.ndim, 0)


def _gather(frame: Frame, rows: jax.Array) -> jax.Array:
    """Return the rows of all devices, on each."""
    if frame.examples.num_averaged == 1:
        return rows
    return jax.lax.all_gather(rows, _mesh.AXIS, tiled=True)


def _mean(frame: Frame, x: jax.Array, axes: tuple[int, ...] | None, keep_dim: bool) -> jax.Array:
    if axes is None and not keep_dim:
        return frame.examples.mean(x)
    if not frame.examples.count_rows(x) or (axes is not None and 0 not in axes):
        return jnp.mean(x, axes, keepdims=keep_dim)
    x = x.astype(jnp.result_type(x, jnp.float32))
    with frame.examples.note(REDUCED_SCOPE):
        weights = align(frame.examples.row_weights(x.shape[0]), x.ndim, 0)
        total = jnp.sum(x * weights.astype(x.dtype), axes, keepdims=keep_dim)
        # How many numbers an example has in each sum.
        count = x.size // frame.examples.batch_size // max(total.size, 1)
        return _mesh.psum(total, frame.examples.num_averaged) / (
            frame.examples.total_weight * count
        )


def _variance(layer: str, input: jax.Array, dim: Axes, keep_dim: bool) -> jax.Array:
    frame, x, axes = _check_array(layer, input, dim)
    if not _is_over_batch(frame, x, axes, layer):
        return jnp.var(x, axes, keepdims=keep_dim)
    x = x.astype(jnp.result_type(x, jnp.float32))
    every = tuple(range(x.ndim)) if axes is None else axes
    # Two passes, the first over all devices: a variance of means would be too small.
    center = _mean(frame, x, every, keep_dim=True)
    distances = x - jnp.broadcast_to(center, x.shape)
    return _mean(frame, distances * distances, every, keep_dim)


def _extremum(
    layer: str,
    input: jax.Array,
    dim: Axes,
    keep_dim: bool,
    reduce: Callable[..., jax.Array],
    reduce_devices: Callable[..., jax.Array],
) -> jax.Array:
    frame, x, axes = _check_array(layer, input, dim)
    if not _is_over_batch(frame, x, axes, layer):
        return reduce(x, axes, keepdims=keep_dim)
    with frame.examples.note(REDUCED_SCOPE):
        # Padding repeats an example, so that it changes no maximum.
        # JAX has no gradient of pmax: it comes from `_zero_with_gradient`.
        found = reduce(jax.lax.stop_gradient(x), axes, keepdims=True)
        if frame.examples.num_averaged > 1:
            found = reduce_devices(found, _mesh.AXIS)
        if jnp.issubdtype(x.dtype, jnp.inexact):
            found = found + _zero_with_gradient(frame, x, found, axes)
        return found if keep_dim else jnp.squeeze(found, axes)


def _zero_with_gradient(
    frame: Frame, x: jax.Array, found: jax.Array, axes: tuple[int, ...] | None
) -> jax.Array:
    """Return 0, with the gradient of a maximum: equal parts for all that are equal to it.

    `lax.pmax` has no gradient, and shares cut by device would depend on their number.
    """
    is_found = (x == jnp.broadcast_to(found, x.shape)) & _valid(frame, x)
    count = _mesh.psum(jnp.sum(is_found, axes, keepdims=True), frame.examples.num_averaged)
    offsets = jnp.where(is_found, x - jax.lax.stop_gradient(x), 0)
    # An infinity minus itself is nan.
    offsets = jnp.where(jnp.isfinite(offsets), offsets, 0)
    total = _mesh.psum(jnp.sum(offsets, axes, keepdims=True), frame.examples.num_averaged)
    return total / jnp.maximum(count, 1).astype(x.dtype)

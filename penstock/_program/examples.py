"""The examples of a batch: their weights, their places, and exact sums and means over them.

Every sum and mean counts the valid examples of the *global* batch once: padding weighs nothing, and
partial sums are added up over the devices.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock._program.batch_axis import RowAnswers

REDUCED_SCOPE = "penstock.reduced"
"""The scope, in a probe's trace, of what is reduced over the whole batch, right on any device."""

PER_DEVICE_SCOPE = "penstock.per_device"
"""The scope of what each device is meant to have of its own: batch norm's statistics."""


def align(vector: jax.Array, num_axes: int, axis: int = -1) -> jax.Array:
    """Return a vector shaped to meet axis `axis` of an array of `num_axes` axes.

    Written out because users may run JAX with `jax_numpy_rank_promotion="raise"`.
    """
    shape = [1] * num_axes
    shape[axis] = vector.shape[0]
    return vector.reshape(shape)


class MicroBatch(NamedTuple):
    """Where a batch lies that is one part of a device's share of a batch.

    Means are those of the part alone; the step weights them by the parts' examples, and adds them
    up over parts and devices after the last.

    Attributes:
      first_row: the position of its first row in the global batch.
      total_weight: the number of valid examples of the global batch.
    """

    first_row: jax.Array
    total_weight: jax.Array


class Examples:
    """One device's share of a batch.

    Arguments:
      weights: of the examples, `[B]`: 1, or 0 where a row is padding.
      rows: which arrays have a batch axis.
      is_probe: nothing has a value; reductions are noted in the trace.

    Attributes:
      total_weight: the number of valid examples that means are taken over.
      first_row: the position of the first row in the global batch.
    """

    def __init__(
        self,
        weights: jax.Array,
        num_devices: int,
        rows: RowAnswers,
        micro_batch: MicroBatch | None = None,
        *,
        is_probe: bool = False,
    ) -> None:
        self.weights, self.num_devices, self.rows = weights, num_devices, rows
        self.batch_size: int = weights.shape[0]
        self.micro_batch, self.is_probe = micro_batch, is_probe
        # A micro-batch is averaged by itself; the devices' are added up after the last.
        self.num_averaged = num_devices if micro_batch is None else 1
        # Made here, in the outermost trace: made lazily inside a scan body it would leak from it.
        with self.note(PER_DEVICE_SCOPE):  # not of the user's own, which micro-batches refuse
            self.total_weight = _mesh.psum(jnp.sum(weights), self.num_averaged)
        if micro_batch is None:
            # Every device has as many rows: the batch is padded to that.
            self.first_row = _mesh.device_index(num_devices) * self.batch_size
        else:
            self.first_row = micro_batch.first_row
            # One of nothing but padding counts nothing: its means must only not be nan.
            self.total_weight = jnp.where(self.total_weight > 0, self.total_weight, 1)

    def note(self, scope: str) -> contextlib.AbstractContextManager[object]:
        """Mark in a probe's trace what is computed inside; other traces stay as they are."""
        return jax.named_scope(scope) if self.is_probe else contextlib.nullcontext()

    def count_rows(self, value: jax.Array) -> int:
        """Return how many rows of axis 0 belong to one example; 0 when axis 0 is no batch axis."""
        return self.rows.answer(value.shape)

    def row_ids(self, num_rows: int) -> jax.Array:
        """Return the position in the global batch of this device's rows, shape `[num_rows]`."""
        with self.note(PER_DEVICE_SCOPE):
            return jnp.arange(num_rows) + self.first_row * (num_rows // self.batch_size or 1)

    def row_weights(self, num_rows: int) -> jax.Array:
        """Return the example weights repeated to `num_rows`, shape `[num_rows]`."""
        return jnp.repeat(self.weights, num_rows // self.batch_size)

    def sum(
        self, value: jax.Array, axes: tuple[int, ...] | None = None, keep_axes: bool = False
    ) -> jax.Array:
        """Return the sum over axes, all by default; over axis 0 of the valid examples of the batch.

        A value without a batch axis is summed as it is.
        """
        value = jnp.asarray(value)
        if not self.count_rows(value) or (axes is not None and 0 not in axes):
            return jnp.sum(value, axes, keepdims=keep_axes)
        with self.note(REDUCED_SCOPE):
            # Multiplied, not chosen: padding repeats an example, and is as finite as it.
            weights = align(self.row_weights(value.shape[0]), value.ndim, 0)
            total = jnp.sum(value * weights.astype(value.dtype), axes, keepdims=keep_axes)
            total = _mesh.psum(total, self.num_averaged)
            if self.micro_batch is None:
                return total
            # The step weights a micro-batch by its share of the examples, of which this is the
            # inverse.
            return total * (self.micro_batch.total_weight / self.total_weight)

    def mean(self, value: jax.Array) -> jax.Array:
        """Return the mean over the valid examples of the global batch, a scalar.

        A value without a batch axis is averaged as it is.
        """
        value = jnp.asarray(value)
        rows = self.count_rows(value)
        with self.note(REDUCED_SCOPE):
            if not rows:
                # The same on every device, or one value of each: the mean serves both.
                return _mesh.pmean(jnp.mean(value), self.num_averaged)
            weights = self.row_weights(value.shape[0])
            per_row = jnp.sum(value.reshape(value.shape[0], -1), axis=1)
            total = _mesh.psum(jnp.sum(per_row * weights), self.num_averaged)
            return total / (self.total_weight * (value.size // self.batch_size))

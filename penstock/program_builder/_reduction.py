"""What devices have computed apart, of a share of the batch each, added up in one all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from penstock import _mesh, _metrics
from penstock._program.examples import MicroBatch, align

T = TypeVar("T")


def place_in_batch(weights: jax.Array, num_devices: int) -> MicroBatch:
    """Return a device's whole share as a micro-batch, from the weights of its examples."""
    # The sum is an all-reduce only where a layer's sum over the batch takes it.
    return MicroBatch(
        first_row=_mesh.device_index(num_devices) * weights.shape[0],
        total_weight=_mesh.psum(jnp.sum(weights), num_devices),
    )


def add_up(
    values: Sequence[jax.Array],
    others: T,
    structure: _metrics.Structure,
    weights: jax.Array,
    mesh: Mesh,
) -> tuple[_metrics.Totals, T]:
    """Return what the micro-batches of all devices make together.

    Arguments:
      values: of each micro-batch, on a leading axis: their means, or their rows.
      others: sums that are to be added up over the devices in the same all-reduce.
      weights: of the examples, `[micro-batches, rows]`.
    """
    # The number of examples of each.
    counts = jnp.sum(weights, axis=1)
    count = jnp.sum(counts)
    scalars = [
        # A micro-batch without examples may have nan for a value, and 0 times nan is nan.
        jnp.tensordot(counts, jnp.where(align(counts, v.ndim, 0) > 0, v, 0), axes=(0, 0))
        for v, r in zip(values, structure.rows, strict=True)
        if not r
    ]
    # `[micro-batches, rows, ...]` to the rows of the share, in their order.
    rows = [
        v.reshape(-1, *v.shape[2:]) if r else v for v, r in zip(values, structure.rows, strict=True)
    ]
    row_sums = [
        _metrics.sum_rows(v, weights.reshape(-1), r)
        for v, r in zip(rows, structure.rows, strict=True)
        if r and mesh.size > 1
    ]
    # All in one call: an all-reduce costs its latency more than its bytes.
    total, others, scalars, row_sums = _mesh.psum_at_once((count, others, scalars, row_sums), mesh)
    means = iter([scalar / total for scalar in scalars])
    found = [v if r else next(means) for v, r in zip(rows, structure.rows, strict=True)]
    return _metrics.Totals(found, row_sums, total, word_counts=[]), others

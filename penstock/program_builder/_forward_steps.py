"""The steps of the test and infer programs: a forward pass split over the devices, no update."""

from __future__ import annotations

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from penstock import _metrics
from penstock._device_batches import DeviceBatch
from penstock._mesh import SPLIT, WHOLE
from penstock._program.requests import DeviceFeed, Variables
from penstock._tracing.evaluation import Runnable, run_program
from penstock._tracing.probe import Probe
from penstock.program_builder import _gradients

T = TypeVar("T")


def test_step(
    program: Runnable,
    mesh: Mesh,
    specs: tuple[PartitionSpec, ...],
    variables: Variables,
    key: jax.Array,
    sums: _metrics.Accumulator,
    feed: DeviceFeed,
    weights: jax.Array,
) -> tuple[_metrics.Accumulator, tuple[jax.Array, ...]]:
    """Return the sums with this batch's values added, and the values."""
    found = _forward(program, mesh, specs, variables, key, feed, weights)
    after = _metrics.accumulate(sums, found, program.structure, weights)
    return after, tuple(found.values)


def infer_step(
    program: Runnable,
    mesh: Mesh,
    specs: tuple[PartitionSpec, ...],
    variables: Variables,
    feed: DeviceFeed,
    weights: jax.Array,
) -> tuple[jax.Array, ...]:
    """Return the values of an infer program."""
    key = jax.random.key_data(jax.random.key(0))
    return tuple(_forward(program, mesh, specs, variables, key, feed, weights).values)


def check_ids(probe: Probe, outputs: T, variables: Variables, batch: DeviceBatch) -> T:
    """Return the outputs of an infer program, where no nan in them is of ids outside a table.

    Every operation runs again by itself, on one device, since ids have values then.

    Raises:
      NonFiniteError: naming the layer.
    """
    program = probe.program
    # Ids of a feed that was on the devices were not checked.
    looks_up = probe.lookups or any(spec.ids for spec in program.feed_specs.values())
    # `x != x` holds for nan alone, of any dtype.
    if not looks_up or not any(np.any(x != x) for x in jax.tree.leaves(outputs)):
        return outputs
    host = _metrics.fetch((variables, dict(batch.feed), batch.weights))
    with jax.disable_jit():
        variables, feed, weights = jax.tree.map(jnp.asarray, host)
        run_program(program, variables, feed, weights, jax.random.key(0), num_devices=1)
    return outputs


def _forward(
    program: Runnable,
    mesh: Mesh,
    specs: tuple[PartitionSpec, ...],
    variables: Variables,
    key: jax.Array,
    feed: DeviceFeed,
    weights: jax.Array,
) -> _metrics.Totals:
    """Return the values of a program function, and the number of valid examples."""
    sharded = jax.shard_map(
        functools.partial(_gradients.evaluate_share, program, mesh),
        mesh=mesh,
        in_specs=(WHOLE, WHOLE, SPLIT, SPLIT),
        out_specs=_metrics.Totals(list(specs), *[WHOLE] * 3),  # pyright: ignore
        check_vma=False,
    )
    return sharded(variables, key, feed, weights)

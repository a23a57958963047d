"""The steps of the test and infer programs: a forward pass split over the devices, no update."""

from __future__ import annotations

import functools

import jax
from jax.sharding import Mesh, PartitionSpec

from penstock import _metrics
from penstock._mesh import SPLIT, WHOLE
from penstock._program.requests import DeviceFeed, Variables
from penstock._tracing.evaluation import Runnable
from penstock.program_builder import _gradients


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

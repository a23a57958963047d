"""A share of a batch in micro-batches: the same gradients in the memory of one of them.

Every micro-batch counts by its valid examples, so that their means are those of the whole batch.
Nothing is reduced over the devices before the last is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock._program import parameter_tree
from penstock._program.examples import MicroBatch, align
from penstock._program.names import Path
from penstock._program.requests import Params
from penstock.program_builder._gradients import Gradients, Share

Cut: TypeAlias = tuple[jax.Array, dict[str, jax.Array], jax.Array]
"""Number, feed and weights of a micro-batch, or of all of them on a leading axis."""

Sums: TypeAlias = tuple[Params, dict[Path, jax.Array]]
"""The gradients added up so far, and the running statistics now."""


def accumulate_gradients(
    share: Share, params: Params, num_micro_batches: int, *, is_unrolled: bool
) -> Gradients:
    """Return the gradients of the batch, added up in a scan over micro-batches.

    Running statistics move with each, as if each were a step.

    Arguments:
      is_unrolled: write the scan out, since XLA runs convolutions in a loop slowly on CPU.
    """
    size = share.weights.shape[0] // num_micro_batches
    first_row, total_weight = _place_in_batch(share)
    # Flat, by path: a micro-batch returns only the statistics that it moves, and what a scan
    # carries keeps one structure.
    flat_stats = parameter_tree.flatten(share.batch_stats)

    def add(carry: Sums, operands: Cut) -> tuple[Sums, list[jax.Array]]:
        sums, statistics = carry
        number, feed, weights = operands
        micro_batch = MicroBatch(first_row + number * size, total_weight)
        values, gradients, updates, _ = share.differentiate(
            params, feed, weights, parameter_tree.nest(statistics), micro_batch
        )
        count = jnp.sum(weights)
        # Chosen, not multiplied: padding alone may well give nan.
        sums = jax.tree.map(
            lambda total, g: total + jnp.where(count > 0, g * count.astype(g.dtype), 0),
            sums,
            gradients,
        )
        # Padding alone moves no statistics either: they would go towards copies of one example.
        statistics = {
            path: jnp.where(count > 0, updates[path], old) if path in updates else old
            for path, old in statistics.items()
        }
        return (sums, statistics), values

    operands = _cut(share, num_micro_batches)
    (sums, statistics), values = jax.lax.scan(
        add,
        # One set of sums, whatever the number of micro-batches: the memory that this is for.
        (jax.tree.map(jnp.zeros_like, params), flat_stats),
        operands,
        unroll=num_micro_batches if is_unrolled else 1,
    )
    return _average(share, sums, statistics, values, operands[-1])


def example_gradients(share: Share, params: Params, num_micro_batches: int) -> Params:
    """Return the gradient of each example's loss, on a leading axis over this share.

    Each example is a micro-batch of its own and meets no other.
    """
    first_row, total_weight = _place_in_batch(share)

    def differentiate(
        number: jax.Array, feed: Mapping[str, jax.Array], weight: jax.Array
    ) -> Params:
        # A batch axis of one row: the program function is written for batches.
        feed = {name: value[None] for name, value in feed.items()}
        micro_batch = MicroBatch(first_row + number, total_weight)
        return share.differentiate(params, feed, weight[None], share.batch_stats, micro_batch)[1]

    numbers = jnp.arange(share.weights.shape[0])
    feed = {name: share.feed[name] for name in share.program.feed_specs}
    operands = (numbers, feed, share.weights)
    if num_micro_batches == 1:
        return share.unscale(jax.vmap(differentiate)(*operands))
    size = share.weights.shape[0] // num_micro_batches
    return share.unscale(jax.lax.map(lambda each: differentiate(*each), operands, batch_size=size))


def accumulate_loss(share: Share, params: Params, num_micro_batches: int) -> jax.Array:
    """Return the mean loss over the global batch, one micro-batch's activations at a time.

    It has the randomness of the gradients and leaves nothing behind. It may be differentiated in
    any mode and to any order.
    """
    if num_micro_batches == 1:
        result, _ = share.run(params, share.feed, share.weights, share.batch_stats)
        return share.scale_gradient(share.loss(result))
    size = share.weights.shape[0] // num_micro_batches
    first_row, total_weight = _place_in_batch(share)

    # Without it a line search that differentiates the loss would keep the activations of all
    # micro-batches.
    @jax.checkpoint
    def add(total: jax.Array, operands: Cut) -> tuple[jax.Array, None]:
        number, feed, weights = operands
        count = jnp.sum(weights)
        # Of padding alone nothing counts, but 0 times nan is nan.
        weights = jnp.where(count > 0, weights, 1)
        micro_batch = MicroBatch(first_row + number * size, total_weight)
        result, _ = share.run(params, feed, weights, share.batch_stats, micro_batch)
        return total + share.scale_gradient(share.loss(result)) * count, None

    total, _ = jax.lax.scan(add, jnp.zeros(()), _cut(share, num_micro_batches))
    return _mesh.psum(total, share.num_devices) / total_weight


def _place_in_batch(share: Share) -> tuple[jax.Array | int, jax.Array]:
    """Return the position of the share's first row, and the global number of valid examples."""
    first_row = _mesh.device_index(share.num_devices) * share.weights.shape[0]
    return first_row, _mesh.psum(jnp.sum(share.weights), share.num_devices)


def _cut(share: Share, number: int) -> Cut:
    """Return numbers, feed and weights of the micro-batches, each stacked on a leading axis."""

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(number, x.shape[0] // number, *x.shape[1:])

    feed = {name: cut(share.feed[name]) for name in share.program.feed_specs}
    return jnp.arange(number), feed, cut(share.weights)


def _average(
    share: Share,
    sums: Params,
    statistics: Mapping[Path, jax.Array],
    values: list[jax.Array],
    weights: jax.Array,
) -> Gradients:
    """Return means over the micro-batches and the devices: the one reduction of the step."""
    # `weights` is `[micro-batches, rows]`, so `counts` has the examples of each.
    counts = jnp.sum(weights, axis=1)
    count = jnp.sum(counts)
    rows = share.program.structure.rows
    scalars = [
        # A micro-batch without examples may have nan for a value, and 0 times nan is nan.
        jnp.tensordot(counts, jnp.where(align(counts, v.ndim, 0) > 0, v, 0), axes=(0, 0))
        for v, r in zip(values, rows, strict=True)
        if not r
    ]
    # On one device they are what the scan left; each other device has seen other examples.
    changed = statistics if share.num_devices > 1 else {}
    weighted = {path: value * count for path, value in changed.items()}
    # All in one call: an all-reduce costs its latency more than its bytes.
    total, sums, scalars, weighted = _mesh.psum((count, sums, scalars, weighted), share.num_devices)
    means = iter([scalar / total for scalar in scalars])
    return Gradients(
        values=[
            # `[micro-batches, rows, ...]` to the rows of the share, in their order.
            v.reshape(-1, *v.shape[2:]) if r else next(means)
            for v, r in zip(values, rows, strict=True)
        ],
        gradients=share.unscale(jax.tree.map(lambda g: g / total.astype(g.dtype), sums)),
        statistics={**statistics, **{path: value / total for path, value in weighted.items()}},
        total_weight=total,
    )

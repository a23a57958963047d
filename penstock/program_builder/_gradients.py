"""What one device computes of its share of a batch: the forward pass and its gradients.

All of it runs inside `jax.shard_map`; what it returns is reduced over the devices already.

A share in micro-batches gives the same gradients in the memory of one of them: every micro-batch
counts by its valid examples, and nothing is reduced over the devices before the last is done. Where
a program allows it a whole share is such a micro-batch, so that a step has one all-reduce.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from penstock import _mesh, _metrics
from penstock._parameter_names import Path
from penstock._program import parameter_tree
from penstock._program.examples import MicroBatch
from penstock._program.frame import Frame
from penstock._program.precision import widen
from penstock._program.requests import DeviceFeed, Params, Variables
from penstock._tracing.evaluation import Evaluated, Runnable, run_program
from penstock.program_builder import _reduction

Cut: TypeAlias = tuple[jax.Array, DeviceFeed, jax.Array]
"""Number, feed and weights of a micro-batch, or of all of them on a leading axis."""

_Values: TypeAlias = tuple[list[jax.Array], list[jax.Array]]
"""Values of a program function, and the words of those that are means over words."""

Sums: TypeAlias = tuple[Params, dict[Path, jax.Array]]
"""The gradients added up so far, and the running statistics now."""


class Gradients(NamedTuple):
    """What a batch gives.

    Attributes:
      totals: what the program function returned, for the global batch.
      gradients: of the mean loss over the global batch.
      statistics: the new running statistics, by path.
    """

    totals: _metrics.Totals
    gradients: Params
    statistics: dict[Path, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """One device's share of a batch, and all that its gradients depend on beside parameters.

    Attributes:
      others: the parameters that are not trained, by path.
      batch_stats: the running statistics before the step.
      known: the paths of penstock's own entries; statistics elsewhere are flax modules'.
      root_key: the raw random key of the run; that of the step is folded from it.
      scale: what the loss is multiplied by and its gradients are divided by; None is neither.
    """

    program: Runnable
    mesh: Mesh
    known: Collection[Path]
    others: Mapping[Path, jax.Array]
    batch_stats: Params
    root_key: jax.Array
    step: jax.Array
    scale: jax.Array | None
    feed: DeviceFeed
    weights: jax.Array

    def gradients(self, params: Params) -> Gradients:
        """Return the gradients of the batch as a whole, by the parameters that are trained."""
        if self.mesh.size > 1 and self.program.reduces_once:
            return self._gradients_apart(params)
        # Values come out reduced already; gradients and flax's statistics are still the device's
        # own.
        values, gradients, updates, total_weight, word_counts = self.differentiate(
            params, self.feed, self.weights, self.batch_stats
        )
        # Each device differentiated the global loss with respect to its own copy: the sum over
        # devices counts it once per device, the mean is the gradient of the global mean.
        gradients = self.unscale(_mesh.pmean(gradients, self.mesh.size))
        # A device counts by its examples, as in a batch norm of ours.
        share = jnp.sum(self.weights) / total_weight
        statistics = {
            path: value
            # Ours are averaged in the layer, over the examples of all devices.
            if path in self.known or self.mesh.size == 1
            else _mesh.psum(value * share.astype(value.dtype), self.mesh.size)
            for path, value in updates.items()
        }
        totals = _metrics.Totals(values, [], total_weight, word_counts)
        return Gradients(totals, gradients, statistics)

    def _gradients_apart(self, params: Params) -> Gradients:
        """Return the same with one all-reduce: the share is a micro-batch, and the only one."""
        values, gradients, updates, *_ = self.differentiate(
            params,
            self.feed,
            self.weights,
            self.batch_stats,
            _reduction.place_in_batch(self.weights, self.mesh.size),
        )
        count = jnp.sum(self.weights)
        # Of padding alone nothing counts, and it may well give nan. Weighted in float32 at least:
        # in bfloat16 a count of examples is rounded.
        sums = jax.tree.map(lambda g: jnp.where(count > 0, widen(g) * count, 0), gradients)
        before = parameter_tree.flatten(self.batch_stats)
        statistics = {
            path: jnp.where(count > 0, value, before[path]) for path, value in updates.items()
        }
        return _average(self, sums, statistics, [v[None] for v in values], self.weights[None])

    def differentiate(
        self,
        params: Params,
        feed: DeviceFeed,
        weights: jax.Array,
        batch_stats: Params,
        micro_batch: MicroBatch | None = None,
        fraction: jax.Array | None = None,
    ) -> tuple[list[jax.Array], Params, dict[Path, jax.Array], jax.Array, list[jax.Array]]:
        """Return values, scaled gradients, new statistics, and the number of examples and words.

        Arguments:
          fraction: what the loss counts for, beside those of other devices that it meets on the
            way back through a layer such as a synchronised batch norm.
        """

        def scaled_loss(
            params: Params,
        ) -> tuple[jax.Array, tuple[_Values, dict[Path, jax.Array], jax.Array]]:
            result, frame = self.run(params, feed, weights, batch_stats, micro_batch)
            loss = self.loss(result)
            # The loss that is reported stays unscaled: the scale is for what flows backwards.
            scaled = loss if self.scale is None else loss * self.scale.astype(loss.dtype)
            scaled = scaled if fraction is None else scaled * fraction.astype(loss.dtype)
            updates = self._updated_statistics(result, frame)
            found = (result.values, result.word_counts)
            return scaled, (found, updates, frame.examples.total_weight)

        # Not `value_and_grad`: the value would be the scaled one.
        gradients, (found, updates, count) = jax.grad(scaled_loss, has_aux=True)(params)
        values, word_counts = found
        return values, gradients, updates, count, word_counts

    def run(
        self,
        params: Params,
        feed: DeviceFeed,
        weights: jax.Array,
        batch_stats: Params,
        micro_batch: MicroBatch | None = None,
    ) -> tuple[Evaluated, Frame]:
        """Run the program function in training mode."""
        variables = {
            "params": parameter_tree.merge(params, self.others),
            "batch_stats": batch_stats,
        }
        # Raw numbers are what files and copies take; the typed key exists only inside the step.
        key = jax.random.fold_in(jax.random.wrap_key_data(self.root_key), self.step)
        devices, step = self.mesh.size, self.step
        return run_program(self.program, variables, feed, weights, key, devices, step, micro_batch)

    def loss(self, result: Evaluated) -> jax.Array:
        """Return the value that is minimised."""
        return result.values[self.program.structure.loss_index]

    def unscale(self, gradients: Params) -> Params:
        """Return gradients without the loss scale."""
        scale = self.scale
        if scale is None:
            return gradients
        return jax.tree.map(lambda g: g / scale.astype(g.dtype), gradients)

    def scale_gradient(self, loss: jax.Array) -> jax.Array:
        """Return a loss as it is, whose gradients are scaled on their way through the network."""
        scale = self.scale
        if scale is None:
            return loss
        return with_gradient(loss, scale, lambda gradient, scale: gradient * scale)

    def _updated_statistics(self, result: Evaluated, frame: Frame) -> dict[Path, jax.Array]:
        """Return the new running statistics of flax modules and of penstock's layers."""
        returned = result.module_updates.get("batch_stats")
        if not returned:
            return frame.requests.updates
        # flax returns the whole collection, ours among it as they were before the step.
        entries = parameter_tree.flatten(returned)
        theirs = {path: value for path, value in entries.items() if path not in self.known}
        return {**theirs, **frame.requests.updates}


def evaluate_share(
    program: Runnable,
    mesh: Mesh,
    variables: Variables,
    key: jax.Array,
    feed: DeviceFeed,
    weights: jax.Array,
) -> _metrics.Totals:
    """Return the values of a test or infer program, from inside `jax.shard_map`.

    Arguments:
      key: the raw random key.
    """
    operands = (program, variables, feed, weights, jax.random.wrap_key_data(key), mesh.size)
    if not program.reduces_once:
        result, frame = run_program(*operands)
        total = frame.examples.total_weight
        return _metrics.Totals(result.values, [], total, result.word_counts)
    result, _ = run_program(*operands, micro_batch=_reduction.place_in_batch(weights, mesh.size))
    values, weights = [v[None] for v in result.values], weights[None]
    return _reduction.add_up(values, (), program.structure, weights, mesh)[0]


def with_gradient(
    value: jax.Array, scale: jax.Array, change: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """Return the value, whose gradient is changed in reverse mode, and not in forward mode.

    Arguments:
      change: takes the gradient and the scale, in the gradient's dtype.
    """
    # Not a `custom_vjp`, which line searches that differentiate forwards do not take. The scale is
    # an argument: a gradient taken outside `shard_map` cannot reach a value of the inside.
    change_it = lambda scale, gradient: change(gradient, scale.astype(gradient.dtype))  # noqa: E731
    return jax.custom_derivatives.linear_call(lambda _, x: x, change_it, scale, value)


def accumulate_gradients(
    share: Share, params: Params, num_micro_batches: int, *, is_unrolled: bool
) -> Gradients:
    """Return the gradients of the batch, added up in a scan over micro-batches.

    Running statistics move with each, as if each were a step.

    Arguments:
      is_unrolled: write the scan out, since XLA runs convolutions in a loop slowly on CPU.
    """
    size = share.weights.shape[0] // num_micro_batches
    whole = _reduction.place_in_batch(share.weights, share.mesh.size)
    # Flat, by path: a micro-batch returns only the statistics that it moves, and what a scan
    # carries keeps one structure.
    flat_stats = parameter_tree.flatten(share.batch_stats)

    operands = _cut(share, num_micro_batches)
    whole = whole._replace(word_counts=_count_words(share, params, whole, operands))

    def add(carry: Sums, operands: Cut) -> tuple[Sums, _Values]:
        sums, statistics = carry
        number, feed, weights = operands
        micro_batch = whole._replace(first_row=whole.first_row + number * size)
        count = jnp.sum(weights)
        # Weighted on the way in: behind a synchronised layer a gradient is of several devices'
        # losses, each with examples of its own number.
        values, gradients, updates, _, word_counts = share.differentiate(
            params, feed, weights, parameter_tree.nest(statistics), micro_batch, count / size
        )
        # Chosen, not multiplied: padding alone may well give nan.
        sums = jax.tree.map(
            lambda total, g: total + jnp.where(count > 0, g * size, 0), sums, gradients
        )
        # Nor does padding alone move a module's own statistics: they would go towards copies of one
        # example. Penstock's layers see to it, and may be moved by other devices' examples.
        moved = {
            path: value if path in share.known else jnp.where(count > 0, value, statistics[path])
            for path, value in updates.items()
        }
        statistics = {**statistics, **moved}
        return (sums, statistics), (values, word_counts)

    (sums, statistics), (values, word_counts) = jax.lax.scan(
        add,
        # One set of sums, whatever the number of micro-batches: the memory that this is for.
        (jax.tree.map(jnp.zeros_like, params), flat_stats),
        operands,
        unroll=num_micro_batches if is_unrolled else 1,
    )
    found = _average(share, sums, statistics, values, operands[-1])
    # Each micro-batch was told the words of the whole.
    known = [count[0] for count in word_counts]
    return found._replace(totals=found.totals._replace(word_counts=known))


def example_gradients(share: Share, params: Params, num_micro_batches: int) -> Params:
    """Return the gradient of each example's loss, on a leading axis over this share.

    Each example is a micro-batch of its own and meets no other.
    """
    whole = _reduction.place_in_batch(share.weights, share.mesh.size)

    def differentiate(number: jax.Array, feed: DeviceFeed, weight: jax.Array) -> Params:
        # A batch axis of one row: the program function is written for batches.
        feed = jax.tree.map(lambda value: value[None], dict(feed))
        micro_batch = whole._replace(first_row=whole.first_row + number)
        return share.differentiate(params, feed, weight[None], share.batch_stats, micro_batch)[1]

    numbers = jnp.arange(share.weights.shape[0])
    feed = {name: share.feed[name] for name in share.program.feed_specs}
    operands = (numbers, feed, share.weights)
    rows = _cut(share, share.weights.shape[0])
    whole = whole._replace(word_counts=_count_words(share, params, whole, rows))
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
    whole = _reduction.place_in_batch(share.weights, share.mesh.size)

    operands = _cut(share, num_micro_batches)
    whole = whole._replace(word_counts=_count_words(share, params, whole, operands))

    # Without it a line search that differentiates the loss would keep the activations of all
    # micro-batches.
    @jax.checkpoint
    def add(total: jax.Array, operands: Cut) -> tuple[jax.Array, None]:
        number, feed, weights = operands
        count = jnp.sum(weights)
        # Of padding alone nothing counts, but 0 times nan is nan.
        weights = jnp.where(count > 0, weights, 1)
        micro_batch = whole._replace(first_row=whole.first_row + number * size)
        result, _ = share.run(params, feed, weights, share.batch_stats, micro_batch)
        return total + share.scale_gradient(share.loss(result)) * count, None

    total, _ = jax.lax.scan(add, jnp.zeros(()), operands)
    return _mesh.psum(total, share.mesh.size) / whole.total_weight


def _count_words(
    share: Share, params: Params, whole: MicroBatch, operands: Cut
) -> jax.Array | None:
    """Return the words of the global batch for each mean over words, before it is computed.

    The program is run for them alone, micro-batch by micro-batch: XLA leaves out all else.
    """
    if not share.program.counts_words:
        return None

    def count(operands: Cut) -> jax.Array:
        frame = share.run(params, *operands[1:], share.batch_stats, whole)[1]
        return jnp.stack(frame.examples.word_counts)

    counts = jax.lax.map(count, operands)
    return _mesh.psum(jnp.sum(counts, axis=0), share.mesh.size)


def _cut(share: Share, number: int) -> Cut:
    """Return numbers, feed and weights of the micro-batches, each stacked on a leading axis."""

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(number, x.shape[0] // number, *x.shape[1:])

    feed = {name: share.feed[name] for name in share.program.feed_specs}
    return jnp.arange(number), jax.tree.map(cut, feed), cut(share.weights)


def _average(
    share: Share,
    sums: Params,
    statistics: Mapping[Path, jax.Array],
    values: list[jax.Array],
    weights: jax.Array,
) -> Gradients:
    """Return means over the micro-batches and the devices: the one reduction of the step."""
    # On one device they are what the scan left; each other device has seen other examples.
    changed = statistics if share.mesh.size > 1 else {}
    count = jnp.sum(weights)
    weighted = {path: value * count for path, value in changed.items()}
    totals, (sums, weighted) = _reduction.add_up(
        values,
        (sums, weighted),
        share.program.structure,
        weights,
        share.mesh,
    )
    total = totals.total_weight
    means = {path: (value / total).astype(changed[path].dtype) for path, value in weighted.items()}
    return Gradients(
        totals=totals,
        gradients=share.unscale(jax.tree.map(lambda g: g / total.astype(g.dtype), sums)),
        statistics={**statistics, **means},
    )

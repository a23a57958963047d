"""The gradients of a batch, whole, in micro-batches, or of each example."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from penstock import _mesh, _metrics, _parameter_names
from penstock._parameter_names import Path
from penstock._program.frame import Frame, MicroBatch
from penstock._program.requests import DeviceFeed, Params
from penstock._tracing.probe import Evaluated, Probe, run_program
from penstock.metrics import RowMetric

Sums: TypeAlias = tuple[Params, dict[Path, jax.Array]]
"""The gradients added up so far, and the running statistics now."""


class Gradients(NamedTuple):
    """What a batch gives.

    Attributes:
      returned: what the program function returned.
      gradients: of the loss.
      statistics: the new running statistics, by path.
    """

    returned: _metrics.Returned
    gradients: Params
    statistics: dict[Path, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch, and all that its gradients depend on beside the parameters that are trained.

    Attributes:
      known: the paths of penstock's own entries; statistics elsewhere are flax modules'.
      others: the parameters that are not trained, by path.
      batch_stats: the running statistics before the step.
      key: the random key of the step.
      scale: what the loss is multiplied by and its gradients are divided by; None is neither.
      is_unrolled: micro-batches are written out: XLA runs convolutions in a loop slowly on CPU.
    """

    program: Probe
    mesh: Mesh
    known: Collection[Path]
    others: Mapping[Path, jax.Array]
    batch_stats: Params
    key: jax.Array
    step: jax.Array
    scale: jax.Array | None
    feed: DeviceFeed
    size: int
    is_unrolled: bool

    def gradients(self, params: Params) -> Gradients:
        """Return the gradients of the loss, and what the forward pass gave beside it."""
        number = self._num_micro_batches
        if number == 1:
            found = self._differentiate(params)
            return found._replace(gradients=self._unscale(found.gradients))
        return self._accumulate_gradients(params, number)

    def loss(self, params: Params) -> jax.Array:
        """Return the loss at other parameters, which may be differentiated in any mode.

        It has the randomness of the gradients, leaves nothing behind, and holds one micro-batch's
        activations at a time.
        """
        scale = self.scale
        if scale is not None:
            unscale = lambda gradient, scale: gradient / scale  # noqa: E731
            params = jax.tree.map(lambda x: with_gradient(x, scale, unscale), params)
        number = self._num_micro_batches
        if number == 1:
            return self._scale_gradient(self._loss_of(self._run(params)[0]))

        whole, total = self._describe_parts(params), jnp.zeros(())
        for part in self._cut(number):
            place = whole._replace(fraction=part.size / self.size)

            # Without it a line search that differentiates the loss would keep the activations of
            # all micro-batches.
            @jax.checkpoint
            def find_loss(
                params: Params, part: Batch = part, place: MicroBatch = place
            ) -> jax.Array:
                return self._scale_gradient(self._loss_of(part._run(params, place)[0]))

            total = total + find_loss(params) * place.fraction
        return total

    def example_gradients(self, params: Params) -> Params:
        """Return the gradient of each example's loss, on a leading axis over the batch.

        Each example is a micro-batch of its own and meets no other.
        """
        place = self._describe_parts(params)._replace(fraction=1 / self.size)

        def differentiate(feed: DeviceFeed, key: jax.Array) -> Params:
            # A batch axis of one row: the program function is written for batches.
            feed = jax.tree.map(lambda value: value[None], dict(feed))
            one = dataclasses.replace(self, feed=feed, key=key, size=1)
            return one._differentiate(params, place).gradients

        feed = {name: self.feed[name] for name in self.program.feed_specs}
        operands = (feed, jax.random.split(self.key, self.size))
        number = self._num_micro_batches
        if number == 1:
            return self._unscale(jax.vmap(differentiate)(*operands))
        size = -(-self.size // number)
        found = jax.lax.map(lambda each: differentiate(*each), operands, batch_size=size)
        return self._unscale(found)

    @property
    def _num_micro_batches(self) -> int:
        return min(self.program.options.num_micro_batches, self.size)

    def _differentiate(self, params: Params, micro_batch: MicroBatch | None = None) -> Gradients:
        """Return the scaled gradients."""

        def scaled_loss(
            params: Params,
        ) -> tuple[jax.Array, tuple[_metrics.Returned, dict[Path, jax.Array]]]:
            result, frame = self._run(params, micro_batch)
            loss = self._loss_of(result)
            # The loss that is reported stays unscaled: the scale is for what flows backwards.
            scaled = loss if self.scale is None else loss * self.scale.astype(loss.dtype)
            return scaled, (result.returned, self._updated_statistics(result, frame))

        # Not `value_and_grad`: the value would be the scaled one.
        gradients, (returned, statistics) = jax.grad(scaled_loss, has_aux=True)(params)
        return Gradients(returned, gradients, statistics)

    def _run(
        self, params: Params, micro_batch: MicroBatch | None = None
    ) -> tuple[Evaluated, Frame]:
        """Run the program function in training mode."""
        variables = {
            "params": _parameter_names.merge(params, self.others),
            "batch_stats": self.batch_stats,
        }
        return run_program(
            self.program,
            variables,
            self.feed,
            self.size,
            self.key,
            self.mesh,
            step=self.step,
            micro_batch=micro_batch,
        )

    def _cut(self, number: int) -> list[Batch]:
        """Return the micro-batches: every so many-th row, so that each stays split over devices."""
        feed = {name: self.feed[name] for name in self.program.feed_specs}
        # XLA (of JAX 0.10.2) takes wrong rows out of a split array where parts are shorter than
        # there are devices: 3 rows in 3 parts on 4 devices.
        if self.size < number * _mesh.count_parts(self.mesh):
            feed = _mesh.lay_out_whole(feed, self.mesh)
        return [
            dataclasses.replace(
                self,
                feed=jax.tree.map(lambda x, first=first: x[first::number], feed),
                size=len(range(first, self.size, number)),
                key=jax.random.fold_in(self.key, first),
            )
            for first in range(number)
        ]

    def _accumulate_gradients(self, params: Params, number: int) -> Gradients:
        """Return the gradients, added up over micro-batches, in the memory of one.

        Running statistics move with each, as if each were a step.
        """
        whole, parts = self._describe_parts(params), self._cut(number)

        def add(sums: Sums, part: Batch) -> tuple[Sums, _metrics.Returned]:
            total, statistics = sums
            part = dataclasses.replace(part, batch_stats=_parameter_names.nest(statistics))
            fraction = part.size / self.size
            found = part._differentiate(params, whole._replace(fraction=fraction))
            total = jax.tree.map(lambda t, g: t + g * fraction, total, found.gradients)
            return (total, {**statistics, **found.statistics}), found.returned

        # One set of sums, whatever the number of micro-batches: the memory that this is for. The
        # statistics flat, by path: a micro-batch returns only those that it moves.
        sums = (jax.tree.map(jnp.zeros_like, params), _parameter_names.flatten(self.batch_stats))
        if self.size % number == 0:
            # Of one size they are a loop, of which XLA compiles one turn.
            def turn(
                sums: Sums, operands: tuple[DeviceFeed, jax.Array]
            ) -> tuple[Sums, _metrics.Returned]:
                feed, key = operands
                return add(sums, dataclasses.replace(parts[0], feed=feed, key=key))

            feeds = jax.tree.map(lambda *rows: jnp.stack(rows), *[dict(p.feed) for p in parts])
            keys = jnp.stack([part.key for part in parts])
            sums, stacked = jax.lax.scan(
                turn, sums, (feeds, keys), unroll=number if self.is_unrolled else 1
            )
            found = [jax.tree.map(lambda x, n=n: x[n], stacked) for n in range(number)]
        else:
            found = []
            for part in parts:
                # One after the other: what they compute must not be in memory together.
                feed, sums = jax.lax.optimization_barrier((dict(part.feed), sums))
                sums, returned = add(sums, dataclasses.replace(part, feed=feed))
                found.append(returned)
        returned = self._join(found, [part.size for part in parts])
        return Gradients(returned, self._unscale(sums[0]), sums[1])

    def _join(self, found: Sequence[_metrics.Returned], sizes: Sequence[int]) -> _metrics.Returned:
        """Return what the micro-batches' values make of the batch."""
        structure, values, word_counts = self.program.structure, [], []
        columns = zip(*[each.values for each in found], strict=True)
        counts = zip(*[each.word_counts for each in found], strict=True)
        for number, column in enumerate(columns):
            rows, is_metric = structure.rows[number], structure.is_metric[number]
            weights: Sequence[Any] = [size / self.size for size in sizes]
            if structure.is_word_mean and structure.is_word_mean[number]:
                count = next(counts)
                # A loss was told the words of the whole.
                word_counts.append(count[0])
                if structure.is_of_part[number]:
                    word_counts[-1] = sum(count)
                    weights = [each / jnp.maximum(word_counts[-1], 1) for each in count]
            if isinstance(column[0], RowMetric):
                values.append(_metrics.join_rows(column, jnp))
            elif is_metric:
                values.append(jax.tree.map(lambda *sums: sum(sums), *column))
            elif rows:
                values.append(_interleave(column, rows, sizes))
            else:
                weighted = zip(column, weights, strict=True)
                values.append(sum(value * weight for value, weight in weighted))
        return _metrics.Returned(values, word_counts)

    def _describe_parts(self, params: Params) -> MicroBatch:
        """Return what every micro-batch is told: the words of the batch, for each mean over words.

        The program is run for them alone: XLA leaves out all else.
        """
        if not self.program.counts_words:
            return MicroBatch(1.0)
        counts = self._run(params, MicroBatch(1.0))[1].word_counts
        return MicroBatch(1.0, jnp.stack(counts))

    def _loss_of(self, result: Evaluated) -> jax.Array:
        loss: Any = result.returned.values[self.program.structure.loss_index]
        return loss

    def _unscale(self, gradients: Params) -> Params:
        """Return gradients without the loss scale."""
        scale = self.scale
        if scale is None:
            return gradients
        return jax.tree.map(lambda g: g / scale.astype(g.dtype), gradients)

    def _scale_gradient(self, loss: jax.Array) -> jax.Array:
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
        entries = _parameter_names.flatten(returned)
        theirs = {path: value for path, value in entries.items() if path not in self.known}
        return {**theirs, **frame.requests.updates}


def _interleave(parts: Sequence[jax.Array], rows: int, sizes: Sequence[int]) -> jax.Array:
    """Return the rows of micro-batches in the order of the batch."""
    # Of each example its rows behind it, and the examples of a row of micro-batches together.
    longest = max(sizes)
    padded = [
        jnp.pad(
            part.reshape(size, rows, *part.shape[1:]),
            [(0, longest - size), *[(0, 0)] * part.ndim],
        )
        for part, size in zip(parts, sizes, strict=True)
    ]
    joined = jnp.stack(padded, axis=1)
    return joined.reshape(-1, *parts[0].shape[1:])[: sum(sizes) * rows]


def with_gradient(
    value: jax.Array, scale: jax.Array, change: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """Return the value, whose gradient is changed in reverse mode, and not in forward mode.

    Arguments:
      change: takes the gradient and the scale, in the gradient's dtype.
    """
    # Not a `custom_vjp`, which line searches that differentiate forwards do not take.
    change_it = lambda scale, gradient: change(gradient, scale.astype(gradient.dtype))  # noqa: E731
    return jax.custom_derivatives.linear_call(lambda _, x: x, change_it, scale, value)

"""The gradients of one batch: of the whole at once, or of its parts one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock.layers import _frame
from penstock.program_builder import _tree
from penstock.program_builder._evaluation import Evaluated
from penstock.program_builder._probe import Path, Probe
from penstock.program_builder._running import run


class Gradients(NamedTuple):
    """What a batch gives.

    Attributes:
      values: what the program function returned, in order; those without a batch axis are means
        over the global batch.
      gradients: of the mean loss over the global batch.
      statistics: the new running statistics, by path.
      total_weight: the number of valid examples of the global batch.
    """

    values: list[jax.Array]
    gradients: Any
    statistics: dict[Path, jax.Array]
    total_weight: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """One device's share of a batch, and all that its gradients depend on beside parameters.

    Attributes:
      others: the parameters that are not trained, by path.
      batch_stats: the running statistics before the step.
      known: the paths of penstock's own entries; statistics elsewhere are flax modules'.
      key: the random key of the step.
      scale: what the loss is multiplied by and its gradients are divided by; None is neither.
    """

    probe: Probe
    others: Mapping[Path, Any]
    batch_stats: Mapping[str, Any]
    known: Mapping[Path, Any]
    feed: Mapping[str, jax.Array]
    weights: jax.Array
    key: jax.Array
    step: jax.Array
    num_devices: int
    scale: jax.Array | None

    def gradients(self, trained: Any) -> Gradients:
        """Return the gradients of the batch as a whole, by the parameters that are trained."""
        values, gradients, updates, total_weight = self._differentiated(
            trained, self.feed, self.weights, self.batch_stats, None
        )
        # Each device differentiated the global loss with respect to its own copy: the sum over
        # devices counts it once per device, the mean is the gradient of the global mean.
        gradients = self._unscaled(_mesh.pmean(gradients, self.num_devices))
        # A device counts by its examples, as in a batch norm of ours.
        share = jnp.sum(self.weights) / total_weight
        statistics = {
            path: value if path in self.known else self._shared(value, share)
            for path, value in updates.items()
        }
        return Gradients(values, gradients, statistics, total_weight)

    def accumulated(self, trained: Any, num_parts: int, *, is_unrolled: bool) -> Gradients:
        """Return the gradients of the batch in parts, added up in a scan.

        Every part counts by its valid examples, so that their means are those of the whole batch.
        Nothing is reduced over the devices before the last part is done. Running statistics move
        with each part, as if each were a step.
        """
        size = self.weights.shape[0] // num_parts
        first_row, total_weight = self._first_row, self._total_weight
        flat_stats = _tree.flatten(self.batch_stats)

        def part(carry: Any, operands: Any) -> tuple[Any, Any]:
            sums, statistics = carry
            number, feed, weights = operands
            micro_batch = _frame.MicroBatch(first_row + number * size, total_weight)
            values, gradients, updates, _ = self._differentiated(
                trained, feed, weights, _tree.nest(statistics), micro_batch
            )
            count = jnp.sum(weights)
            # Chosen, not multiplied: a part of padding alone may well give nan.
            sums = jax.tree.map(
                lambda total, g: total + jnp.where(count > 0, g * count.astype(g.dtype), 0),
                sums,
                gradients,
            )
            statistics = {
                path: jnp.where(count > 0, updates[path], old) if path in updates else old
                for path, old in statistics.items()
            }
            return (sums, statistics), values

        operands = self._parts(num_parts)
        (sums, statistics), values = jax.lax.scan(
            part,
            (jax.tree.map(jnp.zeros_like, trained), flat_stats),
            operands,
            unroll=num_parts if is_unrolled else 1,
        )
        return self._combined(sums, statistics, values, operands[-1])

    def of_examples(self, trained: Any, num_parts: int) -> Any:
        """Return the gradient of each example's loss, on a leading axis over the global batch.

        Each example is a micro-batch of its own and meets no other. Every device holds them all:
        an optimizer that takes them may weigh one against another.
        """
        first_row, total_weight = self._first_row, self._total_weight

        def of_one(number: jax.Array, feed: Mapping[str, jax.Array], weight: jax.Array) -> Any:
            feed = {name: value[None] for name, value in feed.items()}
            micro_batch = _frame.MicroBatch(first_row + number, total_weight)
            return self._differentiated(trained, feed, weight[None], self.batch_stats, micro_batch)[
                1
            ]

        numbers = jnp.arange(self.weights.shape[0])
        feed = {name: self.feed[name] for name in self.probe.feed_specs}
        size = self.weights.shape[0] // num_parts
        if num_parts == 1:
            stacked = jax.vmap(of_one)(numbers, feed, self.weights)
        else:
            stacked = jax.lax.map(
                lambda each: of_one(*each), (numbers, feed, self.weights), batch_size=size
            )
        return _mesh.all_gather(self._unscaled(stacked), self.num_devices)

    def loss(self, trained: Any, num_parts: int) -> jax.Array:
        """Return the mean loss over the global batch at other parameters.

        It has the randomness of `gradients` and leaves nothing behind. It may be differentiated in
        any mode and to any order; its gradients are those of the global mean, on every device.
        """
        trained = jax.tree.map(self._sharing_gradient, trained)
        if num_parts == 1:
            run_of = self._run(trained, self.feed, self.weights, self.batch_stats, None)
            return self._scaling_gradient(self._loss_of(run_of[0]))
        size = self.weights.shape[0] // num_parts
        first_row, total_weight = self._first_row, self._total_weight

        @jax.checkpoint  # one part's activations at a time
        def part(total: jax.Array, operands: Any) -> tuple[jax.Array, None]:
            number, feed, weights = operands
            count = jnp.sum(weights)
            # Of padding alone nothing counts, but 0 times nan is nan.
            weights = jnp.where(count > 0, weights, 1)
            micro_batch = _frame.MicroBatch(first_row + number * size, total_weight)
            result, _ = self._run(trained, feed, weights, self.batch_stats, micro_batch)
            return total + self._scaling_gradient(self._loss_of(result)) * count, None

        total, _ = jax.lax.scan(part, jnp.zeros(()), self._parts(num_parts))
        return _mesh.psum(total, self.num_devices) / total_weight

    @property
    def _first_row(self) -> Any:
        return _mesh.device_index(self.num_devices) * self.weights.shape[0]

    @property
    def _total_weight(self) -> jax.Array:
        return _mesh.psum(jnp.sum(self.weights), self.num_devices)

    def _parts(self, num_parts: int) -> tuple[jax.Array, dict[str, jax.Array], jax.Array]:
        """Return numbers, feed and weights of the parts, each stacked on a leading axis."""

        def cut(x: jax.Array) -> jax.Array:
            return x.reshape(num_parts, x.shape[0] // num_parts, *x.shape[1:])

        feed = {name: cut(self.feed[name]) for name in self.probe.feed_specs}
        return jnp.arange(num_parts), feed, cut(self.weights)

    def _combined(
        self, sums: Any, statistics: Mapping[Path, Any], values: list[Any], weights: jax.Array
    ) -> Gradients:
        """Return means over the parts and the devices: the one reduction of the step."""
        counts = jnp.sum(weights, axis=1)
        count = jnp.sum(counts)
        rows = self.probe.structure.rows
        scalars = [
            jnp.tensordot(counts, jnp.where(_along(counts, v) > 0, v, 0), axes=(0, 0))
            for v, r in zip(values, rows, strict=True)
            if not r
        ]
        changed = statistics if self.num_devices > 1 else {}
        shares = {path: value * count for path, value in changed.items()}
        total, sums, scalars, shares = _mesh.psum((count, sums, scalars, shares), self.num_devices)
        of_scalars = iter(scalars)
        return Gradients(
            values=[
                v.reshape(-1, *v.shape[2:]) if r else next(of_scalars) / total
                for v, r in zip(values, rows, strict=True)
            ],
            gradients=self._unscaled(jax.tree.map(lambda g: g / total.astype(g.dtype), sums)),
            statistics={**statistics, **{path: share / total for path, share in shares.items()}},
            total_weight=total,
        )

    def _differentiated(
        self,
        trained: Any,
        feed: Mapping[str, jax.Array],
        weights: jax.Array,
        batch_stats: Mapping[str, Any],
        micro_batch: _frame.MicroBatch | None,
    ) -> tuple[list[jax.Array], Any, dict[Path, jax.Array], jax.Array]:
        """Return values, gradients, new statistics, and the number of valid examples."""

        def loss_of(trained: Any) -> tuple[jax.Array, Any]:
            result, frame = self._run(trained, feed, weights, batch_stats, micro_batch)
            loss = self._loss_of(result)
            scaled = loss if self.scale is None else loss * self.scale.astype(loss.dtype)
            return scaled, (result.values, self._updates(result, frame), frame.total_weight)

        gradients, (values, updates, total_weight) = jax.grad(loss_of, has_aux=True)(trained)
        return values, gradients, updates, total_weight

    def _run(
        self,
        trained: Any,
        feed: Mapping[str, jax.Array],
        weights: jax.Array,
        batch_stats: Mapping[str, Any],
        micro_batch: _frame.MicroBatch | None,
    ) -> tuple[Evaluated, _frame.Frame]:
        params = _tree.merge(trained, self.others)
        variables = {"params": params, "batch_stats": batch_stats}
        devices, step = self.num_devices, self.step
        return run(self.probe, variables, feed, weights, self.key, devices, step, micro_batch)

    def _loss_of(self, result: Evaluated) -> jax.Array:
        return result.values[self.probe.structure.loss_index]

    def _sharing_gradient(self, parameter: jax.Array) -> jax.Array:
        """Return a parameter as it is, whose gradient is that of all devices, and not scaled."""

        def transpose(_: Any, gradient: jax.Array) -> jax.Array:
            return self._unscaled(_mesh.pmean(gradient, self.num_devices))

        return _as_it_is(parameter, transpose)

    def _scaling_gradient(self, loss: jax.Array) -> jax.Array:
        """Return a loss as it is, whose gradients are scaled on their way through the network."""
        scale = self.scale
        if scale is None:
            return loss
        return _as_it_is(loss, lambda _, gradient: gradient * scale.astype(gradient.dtype))

    def _updates(self, result: Evaluated, frame: _frame.Frame) -> dict[Path, jax.Array]:
        """Return the new running statistics of flax modules and of penstock's layers."""
        from_modules = _tree.flatten(result.module_updates.get("batch_stats", {}))
        theirs = {path: value for path, value in from_modules.items() if path not in self.known}
        return {**theirs, **frame.updates}

    def _shared(self, value: jax.Array, share: jax.Array) -> jax.Array:
        """Return the mean over the devices of a statistic that each has its own of."""
        if self.num_devices == 1:
            return value
        return _mesh.psum(value * share.astype(value.dtype), self.num_devices)

    def _unscaled(self, gradients: Any) -> Any:
        scale = self.scale
        if scale is None:
            return gradients
        return jax.tree.map(lambda g: g / scale.astype(g.dtype), gradients)


def _along(counts: jax.Array, value: jax.Array) -> jax.Array:
    return _frame.along(counts, value.ndim, 0)


def _as_it_is(value: jax.Array, transpose: Callable[[Any, jax.Array], jax.Array]) -> jax.Array:
    """Return the value; its derivative is `transpose` in reverse mode and itself in forward mode.

    Not a `custom_vjp`, which line searches that differentiate forwards do not take.
    """
    return jax.custom_derivatives.linear_call(lambda _, x: x, transpose, (), value)

"""What one device computes of its share of a batch: the forward pass and its gradients.

All of it runs inside `jax.shard_map`; what it returns is reduced over the devices already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock._program import parameter_tree
from penstock._program.examples import MicroBatch
from penstock._program.frame import Frame
from penstock._program.names import Path
from penstock._program.requests import Params
from penstock._tracing.evaluation import Evaluated, Runnable, run_program


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
    gradients: Params
    statistics: dict[Path, jax.Array]
    total_weight: jax.Array


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
    num_devices: int
    known: Collection[Path]
    others: Mapping[Path, jax.Array]
    batch_stats: Params
    root_key: jax.Array
    step: jax.Array
    scale: jax.Array | None
    feed: Mapping[str, jax.Array]
    weights: jax.Array

    def gradients(self, params: Params) -> Gradients:
        """Return the gradients of the batch as a whole, by the parameters that are trained."""
        # Values come out reduced already; gradients and flax's statistics are still the device's
        # own.
        values, gradients, updates, total_weight = self.differentiate(
            params, self.feed, self.weights, self.batch_stats
        )
        # Each device differentiated the global loss with respect to its own copy: the sum over
        # devices counts it once per device, the mean is the gradient of the global mean.
        gradients = self.unscale(_mesh.pmean(gradients, self.num_devices))
        # A device counts by its examples, as in a batch norm of ours.
        share = jnp.sum(self.weights) / total_weight
        statistics = {
            path: value
            # Ours are averaged in the layer, over the examples of all devices.
            if path in self.known or self.num_devices == 1
            else _mesh.psum(value * share.astype(value.dtype), self.num_devices)
            for path, value in updates.items()
        }
        return Gradients(values, gradients, statistics, total_weight)

    def differentiate(
        self,
        params: Params,
        feed: Mapping[str, jax.Array],
        weights: jax.Array,
        batch_stats: Params,
        micro_batch: MicroBatch | None = None,
    ) -> tuple[list[jax.Array], Params, dict[Path, jax.Array], jax.Array]:
        """Return values, scaled gradients, new statistics, and the number of valid examples."""

        def scaled_loss(
            params: Params,
        ) -> tuple[jax.Array, tuple[list[jax.Array], dict[Path, jax.Array], jax.Array]]:
            result, frame = self.run(params, feed, weights, batch_stats, micro_batch)
            loss = self.loss(result)
            # The loss that is reported stays unscaled: the scale is for what flows backwards.
            scaled = loss if self.scale is None else loss * self.scale.astype(loss.dtype)
            updates = self._updated_statistics(result, frame)
            return scaled, (result.values, updates, frame.examples.total_weight)

        # Not `value_and_grad`: the value would be the scaled one.
        gradients, (values, updates, count) = jax.grad(scaled_loss, has_aux=True)(params)
        return values, gradients, updates, count

    def run(
        self,
        params: Params,
        feed: Mapping[str, jax.Array],
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
        devices, step = self.num_devices, self.step
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
        # flax returns the whole collection, ours among it as they were before the step.
        entries = parameter_tree.flatten(result.module_updates.get("batch_stats", {}))
        theirs = {path: value for path, value in entries.items() if path not in self.known}
        return {**theirs, **frame.requests.updates}


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

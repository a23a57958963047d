"""The step functions behind the programs: what one device does with its share of a batch.

They are plain functions of arrays; `_programs` shards and compiles them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from penstock import _metrics, optimizers
from penstock.layers import _frame
from penstock.program_builder import _tree
from penstock.program_builder._gradients import Batch, Gradients
from penstock.program_builder._objective import Objective, State
from penstock.program_builder._options import ProgramOptions
from penstock.program_builder._probe import Path, Probe
from penstock.program_builder._rule import PENALTIES, Rule
from penstock.program_builder._running import run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """One objective's update of the state by one batch.

    Attributes:
      specs: the entries of penstock's layers; flax modules' parameters have none.
      is_unrolled: micro-batches are not a loop, in which XLA runs convolutions slowly on CPU.
    """

    name: str
    objective: Objective
    rule: Rule
    probe: Probe
    specs: Mapping[Path, _frame.ParameterSpec]
    num_devices: int
    is_unrolled: bool

    @property
    def options(self) -> ProgramOptions:
        """The options of the builder."""
        return self.probe.options

    def trains(self, path: Path) -> bool:
        """Return whether this objective updates the parameter at `path`."""
        spec = self.specs.get(path)
        is_trainable = spec is None or spec.trainable
        return is_trainable and self.objective.covers(path) and not self.options.is_frozen(path)

    def trained(self, params: Mapping[str, Any]) -> tuple[Any, dict[Path, Any]]:
        """Return the parameters this objective updates, nested, and the others, flat."""
        return _tree.split(params, self.trains)

    def __call__(
        self, state: State, feed: Mapping[str, jax.Array], weights: jax.Array
    ) -> tuple[State, tuple[jax.Array, ...]]:
        """Return the state after the update and the values of the program function."""
        trained, others = self.trained(state.variables["params"])
        batch = Batch(
            probe=self.probe,
            others=others,
            batch_stats=state.variables["batch_stats"],
            known=self.specs,
            feed=feed,
            weights=weights,
            key=jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step),
            step=state.step,
            num_devices=self.num_devices,
            scale=self._scale(state),
        )
        found = self._found(batch, trained)
        gradients = self._regularized(found.gradients, trained)
        loss = found.values[self.probe.structure.loss_index]
        if self.rule.takes_examples:
            gradients = batch.of_examples(trained, self.options.num_parts)
        offers = self._offers(batch, trained, gradients, loss, state.update_scale)
        steps, opt_state = self.rule.update(gradients, state.opt_state[self.name], trained, offers)
        trained: Any = optax.apply_updates(trained, self._scaled(steps, state.update_scale))
        accumulator = _metrics.accumulate(
            state.metrics[self.name],
            found.values,
            self.probe.structure,
            weights,
            found.total_weight,
            self.num_devices,
        )
        batch_stats = self._new_statistics(state, found.statistics)
        after = state._replace(
            step=state.step + 1,
            variables={"params": _tree.merge(trained, others), "batch_stats": batch_stats},
            opt_state={**state.opt_state, self.name: opt_state},
            metrics={**state.metrics, self.name: accumulator},
        )
        return self._checked(state, after, loss, gradients), tuple(found.values)

    def _found(self, batch: Batch, trained: Any) -> Gradients:
        parts = self.options.num_parts
        if parts == 1:
            return batch.gradients(trained)
        return batch.accumulated(trained, parts, is_unrolled=self.is_unrolled)

    def _offers(
        self, batch: Batch, trained: Any, gradients: Any, loss: jax.Array, scale: jax.Array
    ) -> dict[str, Any]:
        """Return what an optimizer may ask for: see `_rule.OFFERS`.

        `obj_fn` and `grad_fn` are the loss, with its regularizers, and its gradient at other
        parameters. `value_fn` is the loss where an update really leads: a line search tries what
        `update_scale` and the parameters' own learning rates make of its steps.
        """

        def objective(params: Any) -> jax.Array:
            return batch.loss(params, self.options.num_parts) + self._penalty(params)

        def after_scaling(params: Any) -> jax.Array:
            moved = jax.tree.map(lambda new, old: new - old, params, trained)
            moved = self._scaled(moved, scale)
            return objective(jax.tree.map(lambda old, step: old + step, trained, moved))

        def gradient(params: Any, *_: Any) -> Any:
            return self._regularized(self._found(batch, params).gradients, params)

        return {
            "value": loss + self._penalty(trained),
            # Of every parameter an operation more to trace, so only where it is compared.
            "grad": self._scaled(gradients, scale) if self.rule.compares_losses else gradients,
            "value_fn": after_scaling,
            "grad_fn": gradient,
            "obj_fn": objective,
        }

    def _penalty(self, params: Any) -> jax.Array | float:
        """Return what the regularizers add to the loss, as far as they tell."""
        total: jax.Array | float = 0.0
        for path, value in _tree.flatten(params).items():
            spec = self.specs.get(path)
            if spec is not None and isinstance(spec.regularizer, PENALTIES):
                total = total + spec.regularizer.penalty(value)
        return total

    def learning_rate(self, state: State) -> jax.Array | None:
        """Return the rate of the last update, None where the optimizer does not tell."""
        rate = optimizers.learning_rate(state.opt_state.get(self.name))
        return None if rate is None else rate * state.update_scale

    def _scale(self, state: State) -> jax.Array | None:
        if self.name in state.loss_scale:
            return state.loss_scale[self.name].scale
        scale = self.options.precision.loss_scale
        return None if scale == 1.0 else jnp.float32(scale)

    def _checked(self, before: State, after: State, loss: jax.Array, gradients: Any) -> State:
        """Return the state after an update, or the one before where it is to be left out."""
        if self.options.skips_non_finite:
            is_finite = _are_finite((loss, gradients))
            after = _if(is_finite, after, before)
        if self.name not in after.loss_scale:
            return after
        is_finite = _are_finite(gradients)
        if not self.options.skips_non_finite:
            # The loss is counted all the same: one that is not finite itself ends training.
            after = _if(is_finite, after, before)._replace(metrics=after.metrics)
        scale = before.loss_scale[self.name].after(is_finite)
        return after._replace(loss_scale={**before.loss_scale, self.name: scale})

    def _regularized(self, gradients: Any, params: Any) -> Any:
        flat, values = _tree.flatten(gradients), _tree.flatten(params)
        for path in flat:
            spec = self.specs.get(path)
            if spec is not None and spec.regularizer is not None:
                flat[path] = flat[path] + spec.regularizer(values[path])
        return _tree.nest(flat)

    def _scaled(self, steps: Any, scale: jax.Array) -> Any:
        flat = _tree.flatten(steps)
        for path in flat:
            spec = self.specs.get(path)
            if spec is not None and spec.learning_rate != 1.0:
                flat[path] = flat[path] * spec.learning_rate
            flat[path] = flat[path] * scale.astype(flat[path].dtype)
        return _tree.nest(flat)

    def _new_statistics(self, state: State, statistics: Mapping[Path, jax.Array]) -> dict[str, Any]:
        flat = _tree.flatten(state.variables["batch_stats"])
        for path, value in statistics.items():
            if self.objective.covers(path) and not self.options.is_frozen(path):
                flat[path] = value
        return _tree.nest(flat)


def _are_finite(watched: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(watched)]))


def _if(is_finite: jax.Array, after: State, before: State) -> State:
    """Return `after` where all that is watched is finite; else `before`, one step and skip on."""
    kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
    return kept._replace(step=after.step, num_skipped=before.num_skipped + ~is_finite)


Launched = tuple[dict[str, tuple[jax.Array, ...]], jax.Array, dict[str, jax.Array]]
"""Values by objective, a flag, and learning rates by objective."""


def train_step(
    rounds: Sequence[Update], state: State, feed: Mapping[str, jax.Array], weights: jax.Array
) -> tuple[State, Launched]:
    """Apply each update of a round to one batch.

    Returns:
      The state, the values of each objective's last update, a flag that is finite while every
      loss since the last reset was, and the learning rate of each objective whose optimizer tells.
      They are outputs of their own because the state is donated. Where updates are skipped, the
      flag is that and the number skipped so far.
    """
    values: dict[str, tuple[jax.Array, ...]] = {}
    for update in rounds:
        state, values[update.name] = update(state, feed, weights)
    sums = [state.metrics[each.name].loss_sum(each.probe.structure) for each in _distinct(rounds)]
    flag = jnp.sum(jnp.stack(sums)) if len(sums) > 1 else sums[0]
    if any(each.options.skips_non_finite for each in rounds):
        flag = jnp.stack([flag, state.num_skipped.astype(jnp.float32)])
    rates = {each.name: each.learning_rate(state) for each in _distinct(rounds)}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    return state, (values, flag, known)


def _distinct(rounds: Sequence[Update]) -> list[Update]:
    """Return each update of a round once."""
    return list({update.name: update for update in rounds}.values())


def train_steps(
    rounds: Sequence[Update],
    state: State,
    feeds: Mapping[str, jax.Array],
    weights: jax.Array,
    *,
    is_unrolled: bool,
) -> tuple[State, Launched]:
    """Run `train_step` over batches stacked on a leading axis, in one launch.

    On CPU the steps of a network with convolutions are unrolled, because XLA runs a convolution
    inside a loop 9 times slower there. Without any the loop is faster (12 us a step against 18 for
    a 13->1 regression) and compiles in a third of the time.
    """

    def body(state: State, batch: tuple[Any, jax.Array]) -> tuple[State, Launched]:
        return train_step(rounds, state, *batch)

    num_steps = weights.shape[0]
    state, (values, flags, rates) = jax.lax.scan(
        body, state, (dict(feeds), weights), unroll=num_steps if is_unrolled else 1
    )
    return state, (values, flags[-1], rates)


def test_step(
    probe: Probe,
    variables: Mapping[str, Any],
    key: jax.Array,
    accumulator: _metrics.Accumulator,
    feed: Mapping[str, jax.Array],
    weights: jax.Array,
    num_devices: int,
) -> tuple[_metrics.Accumulator, tuple[jax.Array, ...]]:
    """Return the sums with this batch's values added, and the values."""
    result, frame = run(probe, variables, feed, weights, jax.random.wrap_key_data(key), num_devices)
    accumulator = _metrics.accumulate(
        accumulator,
        result.values,
        probe.structure,
        weights,
        frame.total_weight,
        num_devices,
    )
    return accumulator, tuple(result.values)


def infer_step(
    probe: Probe,
    variables: Mapping[str, Any],
    feed: Mapping[str, jax.Array],
    weights: jax.Array,
    num_devices: int,
) -> tuple[jax.Array, ...]:
    """Return the values of an infer program."""
    return tuple(run(probe, variables, feed, weights, jax.random.key(0), num_devices)[0].values)

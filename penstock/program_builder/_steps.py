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

from penstock import _mesh, _metrics
from penstock.layers import _frame
from penstock.program_builder import _tree
from penstock.program_builder._objective import Objective, State
from penstock.program_builder._probe import Evaluated, Path, Probe, evaluate


def _run(
    probe: Probe,
    variables: Mapping[str, Any],
    feed: Mapping[str, jax.Array],
    weights: jax.Array,
    key: jax.Array,
    num_devices: int,
    step: jax.Array | None = None,
) -> tuple[Evaluated, _frame.Frame]:
    frame = _frame.Frame(
        mode=probe.mode,
        variables=variables,
        feed={name: feed[name] for name in probe.feed_specs},
        weights=weights,
        key=key,
        num_devices=num_devices,
        rows=list(probe.rows),
        step=step,
        compute_dtype=probe.compute_dtype,
    )
    result = evaluate(probe.function, frame)
    result.values[:] = [
        value if rows else _mesh.pmean(_as_number(value), num_devices)
        for value, rows in zip(result.values, probe.structure.rows, strict=True)
    ]
    return result, frame


def _as_number(value: jax.Array) -> jax.Array:
    """Return the value in a floating dtype, in which devices may be averaged, on one device too."""
    is_number = jnp.issubdtype(value.dtype, jnp.inexact)
    return value if is_number else value.astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """One objective's update of the state by one batch.

    `specs` are the entries of penstock's layers; flax modules' parameters have none and train as
    they are. With `skips_non_finite` an update whose loss or gradient is not finite changes nothing
    but the counts.
    """

    name: str
    objective: Objective
    probe: Probe
    specs: Mapping[Path, _frame.ParameterSpec]
    num_devices: int
    skips_non_finite: bool = False

    def trains(self, path: Path) -> bool:
        """Return whether this objective updates the parameter at `path`."""
        spec = self.specs.get(path)
        return self.objective.covers(path) and (spec is None or spec.trainable)

    def trained(self, params: Mapping[str, Any]) -> tuple[Any, dict[Path, Any]]:
        """Return the parameters this objective updates, nested, and the others, flat."""
        return _tree.split(params, self.trains)

    def __call__(
        self, state: State, feed: Mapping[str, jax.Array], weights: jax.Array
    ) -> tuple[State, tuple[jax.Array, ...]]:
        """Return the state after the update and the values of the program function."""
        optimizer = self.objective.transformation
        trained, others = self.trained(state.variables["params"])
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

        def loss_of(trained: Any) -> tuple[jax.Array, Any]:
            variables = {**state.variables, "params": _tree.merge(trained, others)}
            result, frame = _run(
                self.probe, variables, feed, weights, key, self.num_devices, state.step
            )
            aux = (result.values, result.module_updates, frame.updates, frame.total_weight)
            return result.values[self.probe.structure.loss_index], aux

        (loss, (values, module_updates, updates, total_weight)), gradients = jax.value_and_grad(
            loss_of, has_aux=True
        )(trained)
        # Each device differentiated the global loss with respect to its own copy: the sum over
        # devices counts it once per device, the mean is the gradient of the global mean.
        gradients = self._regularized(_mesh.pmean(gradients, self.num_devices), trained)
        steps, opt_state = optimizer.update(
            gradients, state.opt_state[self.name], trained, value=loss
        )
        trained: Any = optax.apply_updates(trained, self._scaled(steps, state.update_scale))
        batch_stats = self._new_statistics(state, updates, module_updates)
        accumulator = _metrics.accumulate(
            state.metrics[self.name],
            values,
            self.probe.structure,
            weights,
            total_weight,
            self.num_devices,
        )
        after = state._replace(
            step=state.step + 1,
            variables={"params": _tree.merge(trained, others), "batch_stats": batch_stats},
            opt_state={**state.opt_state, self.name: opt_state},
            metrics={**state.metrics, self.name: accumulator},
        )
        if self.skips_non_finite:
            after = _unless_finite(state, after, (loss, gradients))
        return after, tuple(values)

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

    def _new_statistics(
        self, state: State, updates: Mapping[Path, jax.Array], module_updates: Mapping[str, Any]
    ) -> dict[str, Any]:
        flat = _tree.flatten(state.variables["batch_stats"])
        # penstock's layers average over devices by their example counts; flax modules do not.
        from_modules = _tree.flatten(module_updates.get("batch_stats", {}))
        averaged = {
            path: _mesh.pmean(value, self.num_devices)
            for path, value in from_modules.items()
            if path not in self.specs
        }
        for path, value in {**averaged, **updates}.items():
            if self.objective.covers(path):
                flat[path] = value
        return _tree.nest(flat)


def _unless_finite(before: State, after: State, watched: Any) -> State:
    """Return `after` where all that is watched is finite; else `before`, one step and skip on."""
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(watched)]))
    kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
    return kept._replace(step=after.step, num_skipped=before.num_skipped + ~is_finite)


def train_step(
    rounds: Sequence[Update], state: State, feed: Mapping[str, jax.Array], weights: jax.Array
) -> tuple[State, dict[str, tuple[jax.Array, ...]], jax.Array]:
    """Apply each update of a round to one batch.

    Returns:
      The state, the values of each objective's last update, and a flag that is finite while every
      loss since the last reset was; it is an output of its own because the state is donated. Where
      updates are skipped, the flag is that and the number skipped so far.
    """
    values: dict[str, tuple[jax.Array, ...]] = {}
    for update in rounds:
        state, values[update.name] = update(state, feed, weights)
    sums = [state.metrics[each.name].loss_sum(each.probe.structure) for each in _distinct(rounds)]
    flag = jnp.sum(jnp.stack(sums)) if len(sums) > 1 else sums[0]
    if any(each.skips_non_finite for each in rounds):
        flag = jnp.stack([flag, state.num_skipped.astype(jnp.float32)])
    return state, values, flag


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
) -> tuple[State, dict[str, tuple[jax.Array, ...]], jax.Array]:
    """Run `train_step` over batches stacked on a leading axis, in one launch.

    On CPU the steps of a network with convolutions are unrolled, because XLA runs a convolution
    inside a loop 9 times slower there. Without any the loop is faster (12 us a step against 18 for
    a 13->1 regression) and compiles in a third of the time.
    """

    def body(state: State, batch: tuple[Any, jax.Array]) -> tuple[State, Any]:
        state, values, flag = train_step(rounds, state, *batch)
        return state, (values, flag)

    num_steps = weights.shape[0]
    state, (values, flags) = jax.lax.scan(
        body, state, (dict(feeds), weights), unroll=num_steps if is_unrolled else 1
    )
    return state, values, flags[-1]


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
    result, frame = _run(
        probe, variables, feed, weights, jax.random.wrap_key_data(key), num_devices
    )
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
    return tuple(_run(probe, variables, feed, weights, jax.random.key(0), num_devices)[0].values)

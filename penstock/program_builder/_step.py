"""The steps of programs, from top to bottom: train, test, infer.

Each is a pure function of global arrays, which `engine` has compiled. What a device does of it, and
what it tells the others, is XLA's: nothing here counts devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec

from penstock import _mesh, _metrics, _parameter_names, optimizers
from penstock._mesh import WHOLE
from penstock._padded_batches import DeviceBatch, Rows
from penstock._parameter_names import Path
from penstock._parameter_updates import NUM_BINS, Statistics
from penstock._program.frame import (
    MicroBatch,
    ParameterSpec,
    Params,
    Variables,
    find_entry,
    make_root,
    widen,
    wrap_key,
)
from penstock._program.inputs import DeviceFeed
from penstock._program.precision import LossScale
from penstock._tracing.probe import Evaluated, Probe, run_program
from penstock.metrics import RowMetric
from penstock.program_builder._objective import Objective
from penstock.program_builder._optimizer import PENALTIES, Rule


class State(NamedTuple):
    """Hold everything that a training run carries from step to step, as arrays on the devices.

    `builder.train` donates the state: use the state that it returns, and not the old one.

    It is a named tuple because JAX flattens it in every step: a frozen dataclass takes 3 us longer.
    A step does not change the last fields, `update_scale` and `key`, nor `num_skipped` where no
    update can be skipped. They are not donated and not returned by the compiled step. Each returned
    array takes 2 us, a tenth of the smallest step.

    Attributes:
      step: the number of updates so far, by all objectives together; an int32 scalar.
      variables: `{"params": ..., "batch_stats": ...}`, nested dicts by scope, layer and leaf.
      opt_state: the optimizer state of each objective, by name.
      metrics: the sums of each objective's metrics since the last reset, by name.
      loss_scale: the dynamic loss scale of each objective, by name; empty without one.
      num_skipped: the number of updates skipped because a loss or gradient was not finite; int32.
      update_scale: a factor for every update of the parameters; a float32 scalar.
      key: the root random key, uint32. The key of a step is derived from it and `step`.
    """

    step: jax.Array
    variables: dict[str, Params]
    opt_state: dict[str, optax.OptState]
    metrics: dict[str, _metrics.Sums]
    loss_scale: dict[str, LossScale]
    num_skipped: jax.Array
    update_scale: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """One objective's update of the state by one batch.

    Attributes:
      gradient_specs: how gradients lie on the mesh, by path, where that is not left to XLA.
      is_unrolled: micro-batches are not a loop, in which XLA runs convolutions slowly on CPU.
      waits_for_gradients: the optimizer starts when all gradients are there.
      watch: makes the context in which JAX looks for a nan, see `Programs.run_eagerly`.
      measures: whether it tells the sizes of gradients and steps.
    """

    name: str
    objective: Objective
    rule: Rule
    program: Probe
    specs: Mapping[Path, ParameterSpec]
    trained: frozenset[Path]
    gradient_specs: Mapping[Path, PartitionSpec]
    is_unrolled: bool
    waits_for_gradients: bool = False
    watch: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    measures: bool = False

    def __call__(
        self, state: State, feed: DeviceFeed, rows: Rows
    ) -> tuple[State, tuple[_metrics.Value, ...], Statistics | None]:
        """Return the state after the update, the values of the program function, and sizes."""
        # What is not trained goes in beside it, and gets no gradient at all.
        params, frozen = _parameter_names.split(state.variables["params"], self.trained)
        batch = Batch(
            update=self,
            frozen=frozen,
            batch_stats=state.variables["batch_stats"],
            # Raw numbers are what files and copies take; the typed key exists only in a step.
            key=jax.random.fold_in(wrap_key(state.key), state.step),
            step=state.step,
            scale=self.loss_scale(state),
            feed=feed,
            size=rows.num_examples,
        )
        with self.watch():
            computed = batch.gradients(params)
            values = computed.returned.values
            loss: jax.Array = values[self.program.structure.loss_index]  # pyright: ignore
            gradients = computed.gradients
            if self.waits_for_gradients:
                gradients = lax.optimization_barrier(gradients)
            gradients = self._regularize(gradients, params)
            mean_gradients = gradients
            if self.rule.takes_examples:
                gradients = batch.example_gradients(params)
            before = state.opt_state[self.name]
            if self.rule.whole_on is not None:
                gradients, before, params = self.rule.lay_out((gradients, before, params))
            offers = self._offers(batch, params, gradients, loss, state.update_scale)
            steps, opt_state = self.rule.update(gradients, before, params, offers)
            if self.rule.whole_on is not None:
                steps, opt_state = self.rule.lay_out((steps, opt_state))
            steps = self._scale(steps, state.update_scale)
            sizes = measure(params, mean_gradients, steps) if self.measures else None
            params: Any = optax.apply_updates(params, steps)
            params = _parameter_names.merge(params, frozen)
        # Of the values before the update, which are those that `EndStep` reports.
        sums, structure = state.metrics[self.name], self.program.structure
        sums = _metrics.add(sums, _metrics.sum_up(computed.returned, structure, rows.num_examples))
        after = state._replace(
            step=state.step + 1,
            variables={
                "params": params,
                "batch_stats": self._new_statistics(state, computed.statistics),
            },
            opt_state={**state.opt_state, self.name: opt_state},
            metrics={**state.metrics, self.name: sums},
        )
        values = spread_rows(values, self.program, rows)
        return self._keep_or_skip(state, after, loss, gradients), values, sizes

    @functools.cached_property
    def _regularizers(self) -> dict[Path, Callable[[jax.Array], jax.Array]]:
        """What is added to the gradients, by parameter, in the order of the tree."""
        specs = [self.specs[path] for path in sorted(self.trained) if path in self.specs]
        return {spec.path: spec.regularizer for spec in specs if spec.regularizer is not None}

    def _regularize(self, gradients: Params, params: Params) -> Params:
        if not self._regularizers:
            return gradients
        flat, values = _parameter_names.flatten(gradients), _parameter_names.flatten(params)
        for path, regularizer in self._regularizers.items():
            if isinstance(regularizer, PENALTIES):
                term = regularizer(values[path])
            else:
                # A function of the user's, of whose operations XLA may split some wrongly.
                mesh = self.program.options.mesh
                whole = _mesh.lay_out(values[path], mesh, WHOLE)
                term = _mesh.lay_out(regularizer(whole), mesh, WHOLE)
            flat[path] = flat[path] + term
        return _parameter_names.nest(flat)

    def _offers(
        self, batch: Batch, params: Params, gradients: Params, loss: jax.Array, scale: jax.Array
    ) -> dict[str, object]:
        """Return what an optimizer may ask for: see `_optimizer.OFFERS`.

        `obj_fn` and `grad_fn` are the loss, with its regularizers, and its gradient at other
        parameters. `value_fn` is the loss where an update really leads: a line search tries what
        `update_scale` and the parameters' own learning rates make of its steps.
        """

        def objective(point: Params) -> jax.Array:
            return batch.loss(point) + self._penalty(point)

        def loss_after(point: Params) -> jax.Array:
            moved = jax.tree.map(lambda new, old: new - old, point, params)
            moved = self._scale(moved, scale)
            return objective(jax.tree.map(lambda old, step: old + step, params, moved))

        def gradient(point: Params, *_: object) -> Params:
            gradients = self.rule.lay_out(batch.gradients(point).gradients)
            return self._regularize(gradients, point)

        return {
            "value": loss + self._penalty(params),
            # One more operation to trace for every parameter, so only where it is compared.
            "grad": self._scale(gradients, scale) if self.rule.compares_losses else gradients,
            "value_fn": loss_after,
            "grad_fn": gradient,
            "obj_fn": objective,
            "regularized": frozenset(self._regularizers),
        }

    def _penalty(self, params: Params) -> jax.Array | float:
        """Return what the regularizers add to the loss, as far as they tell."""
        total: jax.Array | float = 0.0
        for path, regularizer in self._regularizers.items():
            if isinstance(regularizer, PENALTIES):
                total = total + regularizer.penalty(find_entry(params, path))
        return total

    def _scale(self, steps: Params, scale: jax.Array) -> Params:
        """Return an optimizer's steps times the parameters' own rates and the scale of all."""
        flat = _parameter_names.flatten(steps)
        for path in flat:
            spec = self.specs.get(path)
            if spec is not None and spec.learning_rate != 1.0:
                flat[path] = flat[path] * spec.learning_rate
            # In the step's own dtype: float32 would widen the update of a bfloat16 parameter.
            flat[path] = flat[path] * scale.astype(flat[path].dtype)
        return _parameter_names.nest(flat)

    def _new_statistics(self, state: State, statistics: Mapping[Path, jax.Array]) -> Params:
        if not statistics:
            return state.variables["batch_stats"]
        flat = _parameter_names.flatten(state.variables["batch_stats"])
        for path, value in statistics.items():
            if self.objective.covers(path) and not self.program.options.is_frozen(path):
                flat[path] = value
        return _parameter_names.nest(flat)

    def _keep_or_skip(
        self, before: State, after: State, loss: jax.Array, gradients: Params
    ) -> State:
        """Return the state after an update, or the one before where it is to be left out."""
        if self.program.options.skips_non_finite:
            is_finite = _are_finite((loss, gradients))
            after = _choose(is_finite, after, before)
        if self.name not in after.loss_scale:
            return after
        is_finite = _are_finite(gradients)
        if not self.program.options.skips_non_finite:
            # The loss is counted all the same: one that is not finite itself ends training, and
            # so do gradients that are at the smallest scale, by the next loss.
            is_taken = is_finite | before.loss_scale[self.name].is_smallest
            after = _choose(is_taken, after, before)._replace(metrics=after.metrics)
        scale = before.loss_scale[self.name].after(is_finite)
        return after._replace(loss_scale={**before.loss_scale, self.name: scale})

    def loss_scale(self, state: State) -> jax.Array | None:
        """Return what the loss is multiplied by for its gradients, None for nothing."""
        if self.name in state.loss_scale:
            return state.loss_scale[self.name].scale
        scale = self.program.options.precision.loss_scale
        return None if scale == 1.0 else jnp.float32(scale)


Sums: TypeAlias = tuple[Params, dict[Path, jax.Array]]
"""The gradients added up so far, and the running statistics now."""


class Gradients(NamedTuple):
    """What a batch gives."""

    returned: _metrics.Returned
    gradients: Params
    statistics: dict[Path, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch, and all that its gradients depend on beside the parameters that are trained.

    The loss is multiplied by `scale` and its gradients are divided by it; None is neither.
    """

    update: Update
    frozen: Mapping[Path, jax.Array]
    batch_stats: Params
    key: jax.Array
    step: jax.Array
    scale: jax.Array | None
    feed: DeviceFeed
    size: int

    def gradients(self, params: Params) -> Gradients:
        number = self._num_micro_batches
        if number == 1:
            computed = self._differentiate(params)
            return computed._replace(gradients=self._unscale(computed.gradients))
        return self._accumulate_gradients(params, number)

    def loss(self, params: Params) -> jax.Array:
        """Return the loss at other parameters, which may be differentiated in any mode.

        It holds one micro-batch's activations at a time.
        """
        scale = self.scale
        if scale is not None:
            params = jax.tree.map(lambda x: _with_gradient(x, scale, _divide), params)
        number = self._num_micro_batches
        if number == 1:
            return self._scale_gradient(self._loss_of(self._run(params)))

        whole, total = self._describe_parts(params), jnp.zeros(())
        for part in self._cut(number):
            place = whole._replace(fraction=part.size / self.size)

            # Without it a line search that differentiates the loss would keep the activations of
            # all micro-batches.
            @jax.checkpoint
            def find_loss(
                params: Params, part: Batch = part, place: MicroBatch = place
            ) -> jax.Array:
                return self._scale_gradient(self._loss_of(part._run(params, place)))

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
            example = dataclasses.replace(self, feed=feed, key=key, size=1)
            return example._differentiate(params, place).gradients

        number = self._num_micro_batches
        operands = (self._lay_out_feed(number), jax.random.split(self.key, self.size))
        if number == 1:
            return self._unscale(jax.vmap(differentiate)(*operands))
        size = -(-self.size // number)
        gradients = jax.lax.map(lambda operand: differentiate(*operand), operands, batch_size=size)
        return self._unscale(gradients)

    @property
    def _num_micro_batches(self) -> int:
        return min(self.update.program.options.num_micro_batches, self.size)

    def _differentiate(self, params: Params, micro_batch: MicroBatch | None = None) -> Gradients:
        """Return the scaled gradients."""

        def scaled_loss(
            params: Params,
        ) -> tuple[jax.Array, tuple[_metrics.Returned, dict[Path, jax.Array]]]:
            result = self._run(params, micro_batch)
            loss = self._loss_of(result)
            # The loss that is reported stays unscaled: the scale is for what flows backwards.
            scaled = loss if self.scale is None else loss * self.scale.astype(loss.dtype)
            return scaled, (result.returned, self._updated_statistics(result))

        # Not `value_and_grad`: the value would be the scaled one.
        gradients, (returned, statistics) = jax.grad(scaled_loss, has_aux=True)(params)
        if specs := self.update.gradient_specs:
            # Each device adds up what it will keep, and no more.
            flat, mesh = _parameter_names.flatten(gradients), self.update.program.options.mesh
            flat = _mesh.lay_out(flat, mesh, {path: specs[path] for path in flat})
            gradients = _parameter_names.nest(flat)
        return Gradients(returned, gradients, statistics)

    def _run(self, params: Params, micro_batch: MicroBatch | None = None) -> Evaluated:
        variables = {
            "params": _parameter_names.merge(params, self.frozen),
            "batch_stats": self.batch_stats,
        }
        return run_program(
            self.update.program,
            variables,
            self.feed,
            self.size,
            self.key,
            step=self.step,
            micro_batch=micro_batch,
        )

    def _cut(self, number: int) -> list[Batch]:
        """Return the micro-batches: every so many-th row, so that each stays split over devices."""
        feed = self._lay_out_feed(number)
        return [
            dataclasses.replace(
                self,
                feed=jax.tree.map(lambda x, first=first: x[first::number], feed),
                size=len(range(first, self.size, number)),
                key=jax.random.fold_in(self.key, first),
            )
            for first in range(number)
        ]

    def _lay_out_feed(self, number: int) -> DeviceFeed:
        """Return what the program reads, to be cut into so many parts."""
        program, mesh = self.update.program, self.update.program.options.mesh
        feed = {name: self.feed[name] for name in program.feed_specs}
        num_places = number * _mesh.count_parts(mesh)
        # XLA (of JAX 0.10.2) takes wrong rows out of a split array where parts are shorter than
        # there are devices: 3 rows in 3 parts on 4 devices.
        is_uneven = program.layout == "even" and self.size % num_places
        return _mesh.lay_out(feed, mesh, WHOLE) if is_uneven or self.size < num_places else feed

    def _accumulate_gradients(self, params: Params, number: int) -> Gradients:
        """Return the gradients, added up over micro-batches, in the memory of one.

        Running statistics move with each, as if each were a step.
        """
        whole, parts = self._describe_parts(params), self._cut(number)

        def add(sums: Sums, part: Batch) -> tuple[Sums, _metrics.Returned]:
            total, statistics = sums
            part = dataclasses.replace(part, batch_stats=_parameter_names.nest(statistics))
            fraction = part.size / self.size
            computed = part._differentiate(params, whole._replace(fraction=fraction))
            total = jax.tree.map(lambda t, g: t + widen(g) * fraction, total, computed.gradients)
            return (total, {**statistics, **computed.statistics}), computed.returned

        # One set of sums, whatever the number of micro-batches: the memory that this is for. The
        # statistics flat, by path: a micro-batch returns only those that it moves. Wide: many small
        # parts added up in half precision vanish.
        zeros = jax.tree.map(lambda x: jnp.zeros_like(widen(x)), params)
        sums = (zeros, _parameter_names.flatten(self.batch_stats))
        is_watched = self.update.watch is not contextlib.nullcontext
        if self.size % number == 0 and not is_watched:
            # Of one size they are a loop, of which XLA compiles one turn.
            def turn(
                sums: Sums, operands: tuple[DeviceFeed, jax.Array]
            ) -> tuple[Sums, _metrics.Returned]:
                feed, key = operands
                return add(sums, dataclasses.replace(parts[0], feed=feed, key=key))

            feeds = jax.tree.map(lambda *rows: jnp.stack(rows), *[dict(p.feed) for p in parts])
            keys = jnp.stack([part.key for part in parts])
            sums, stacked = jax.lax.scan(
                turn, sums, (feeds, keys), unroll=number if self.update.is_unrolled else 1
            )
            values = [jax.tree.map(lambda x, n=n: x[n], stacked) for n in range(number)]
        else:
            values = []
            for part in parts:
                # One after the other: what they compute must not be in memory together.
                feed, sums = jax.lax.optimization_barrier((dict(part.feed), sums))
                sums, returned = add(sums, dataclasses.replace(part, feed=feed))
                values.append(returned)
        returned = self._join(values, [part.size for part in parts])
        gradients = jax.tree.map(lambda g, x: g.astype(x.dtype), self._unscale(sums[0]), params)
        return Gradients(returned, gradients, sums[1])

    def _join(
        self, returned: Sequence[_metrics.Returned], sizes: Sequence[int]
    ) -> _metrics.Returned:
        """Return what the micro-batches' values make of the batch."""
        structure, values, word_counts = self.update.program.structure, [], []
        columns = zip(*[part.values for part in returned], strict=True)
        counts = zip(*[part.word_counts for part in returned], strict=True)
        for item, column in zip(structure.items, columns, strict=True):
            weights: Sequence[Any] = [size / self.size for size in sizes]
            if item.counts_words:
                count = next(counts)
                # A loss was told the words of the whole.
                word_counts.append(count[0])
                if item.is_of_part:
                    word_counts[-1] = sum(count)
                    weights = [words / jnp.maximum(word_counts[-1], 1) for words in count]
            if isinstance(column[0], RowMetric):
                values.append(_metrics.join_rows(column, jnp))
            elif item.is_metric:
                values.append(jax.tree.map(lambda *sums: sum(sums), *column))
            elif item.rows:
                values.append(_interleave(column, item.rows, sizes))
            else:
                weighted = zip(column, weights, strict=True)
                total: Any = sum(widen(value) * weight for value, weight in weighted)
                values.append(total.astype(column[0].dtype))
        return _metrics.Returned(values, word_counts)

    def _describe_parts(self, params: Params) -> MicroBatch:
        """Return what every micro-batch is told: the words of the batch, which XLA counts alone."""
        if not self.update.program.counts_words:
            return MicroBatch(1.0)
        counts = self._run(params, MicroBatch(1.0)).frame.word_counts
        return MicroBatch(1.0, jnp.stack(counts))

    def _loss_of(self, result: Evaluated) -> jax.Array:
        loss: Any = result.returned.values[self.update.program.structure.loss_index]
        return loss

    def _unscale(self, gradients: Params) -> Params:
        scale = self.scale
        if scale is None:
            return gradients
        return jax.tree.map(functools.partial(_divide, scale), gradients)

    def _scale_gradient(self, loss: jax.Array) -> jax.Array:
        """Return a loss as it is, whose gradients are scaled on their way through the network."""
        scale = self.scale
        if scale is None:
            return loss
        return _with_gradient(loss, scale, lambda scale, g: g * scale.astype(g.dtype))

    def _updated_statistics(self, result: Evaluated) -> dict[Path, jax.Array]:
        """Return the new running statistics of flax modules and of penstock's layers."""
        returned = result.module_updates.get("batch_stats")
        if not returned:
            return result.frame.updates
        # flax returns the whole collection, ours among it as they were before the step.
        entries = _parameter_names.flatten(returned)
        of_modules = {
            path: value for path, value in entries.items() if path not in self.update.specs
        }
        return {**of_modules, **result.frame.updates}


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


def _with_gradient(
    value: jax.Array, scale: jax.Array, change: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """Return the value, whose gradient is changed in reverse mode, and not in forward mode."""
    # Not a `custom_vjp`, which line searches that differentiate forwards do not take.
    return jax.custom_derivatives.linear_call(lambda _, x: x, change, scale, value)


def _divide(scale: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return a gradient without the scale, which may be more than its dtype holds."""
    wide = widen(gradient)
    return (wide / scale.astype(wide.dtype)).astype(gradient.dtype)


def _are_finite(watched: object) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(watched)]))


def _choose(is_finite: jax.Array, after: State, before: State) -> State:
    """Return `after` where all that is watched is finite; else `before`, one step and skip on."""
    kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
    return kept._replace(step=after.step, num_skipped=before.num_skipped + ~is_finite)


class Launched(NamedTuple):
    """What a launch returns beside the state, which is donated.

    The flag is finite while every loss since the last reset was; where updates are skipped, it is
    that and the number skipped so far. The values are of each objective's last update.
    """

    values: dict[str, tuple[_metrics.Value, ...]]
    flag: jax.Array
    rates: dict[str, jax.Array]
    sizes: dict[str, Statistics]


def train_step(
    updates: Sequence[Update], state: State, feed: DeviceFeed, rows: Rows
) -> tuple[State, Launched]:
    """Apply updates to one batch, in their order."""
    layouts = {update.program.layout for update in updates}
    layout: _mesh.Layout = next(name for name in ("whole", "even", "split") if name in layouts)
    feed = rows.cut(feed, updates[0].program.options.mesh, layout)
    values: dict[str, tuple[_metrics.Value, ...]] = {}
    sizes: dict[str, Statistics] = {}
    for update in updates:
        state, values[update.name], measured = update(state, feed, rows)
        if measured is not None:
            sizes[update.name] = measured
    sums: list[jax.Array] = []
    rates: dict[str, jax.Array] = {}
    for update in {update.name: update for update in updates}.values():
        sums.append(state.metrics[update.name].loss_sum(update.program.structure))
        rate = optimizers.learning_rate(state.opt_state[update.name])
        # Some optimizers do not tell it.
        if rate is not None:
            rates[update.name] = rate * state.update_scale
    flag = jnp.sum(jnp.stack(sums)) if len(sums) > 1 else sums[0]
    if updates[0].program.options.skips_non_finite:
        flag = jnp.stack([flag, state.num_skipped.astype(jnp.float32)])
    return state, Launched(values, flag, rates, sizes)


def train_steps(
    updates: Sequence[Update], state: State, feeds: DeviceFeed, rows: Rows, num_steps: int
) -> tuple[State, Launched]:
    """Run `train_step` over batches stacked on a leading axis, in one launch."""

    def body(state: State, feed: DeviceFeed) -> tuple[State, Launched]:
        return train_step(updates, state, feed, rows)

    # Unrolled around convolutions on CPU: XLA runs one inside a loop 9 times slower there. Without
    # any the loop is faster (12 us a step against 18 for a 13->1 regression) and compiles in a
    # third of the time.
    unroll = num_steps if any(update.is_unrolled for update in updates) else 1
    state, launched = jax.lax.scan(body, state, dict(feeds), num_steps, unroll=unroll)
    return state, launched._replace(flag=launched.flag[-1])


def test_step(
    program: Probe,
    variables: Variables,
    key: jax.Array,
    sums: _metrics.Sums,
    feed: DeviceFeed,
    rows: Rows,
) -> tuple[_metrics.Sums, tuple[_metrics.Value, ...]]:
    returned = _forward(program, variables, wrap_key(key), feed, rows)
    after = _metrics.add(sums, _metrics.sum_up(returned, program.structure, rows.num_examples))
    return after, spread_rows(returned.values, program, rows)


def resample_step(
    program: Probe,
    variables: Variables,
    key: jax.Array,
    sums: _metrics.Sums,
    number: jax.Array,
    feed: DeviceFeed,
    rows: Rows,
) -> _metrics.Sums:
    """Return sums of resampled data sets, `[R + 2, ...]`, with a batch's examples added.

    The program runs for each example by itself. In resample `r` an example counts as often as a
    Poisson draw says, whose mean is 1: a bootstrap that needs no second pass. In the first, each
    counts once. The last has the squared distances of all numbers from their means.
    """
    feed = rows.cut(feed, program.options.mesh, program.layout)

    def run_one(example: DeviceFeed) -> _metrics.Sums:
        part = jax.tree.map(lambda x: x[jnp.newaxis], dict(example))
        returned = run_program(program, variables, part, 1, wrap_key(key)).returned
        term = _metrics.sum_up(returned, program.structure, 1)
        return term._replace(arrays=tuple(filter(_metrics.is_resampled, term.arrays)))

    terms = jax.vmap(run_one)(dict(feed))
    # Of the distribution function of Poisson(1), how many steps a draw has passed.
    steps = jnp.cumsum(jnp.array([math.exp(-1) / math.factorial(k) for k in range(10)]))

    def resample(key: jax.Array) -> _metrics.Sums:
        draws = jax.random.uniform(key, (rows.num_examples,))
        weights = jnp.searchsorted(steps, draws, side="right", method="compare_all")
        weights = weights.astype(jnp.float32)
        # In full precision, which accelerators' products do not have by default.
        product = functools.partial(jnp.tensordot, axes=1, precision=jax.lax.Precision.HIGHEST)
        return jax.tree.map(lambda values: product(weights, values), terms)

    keys = jax.random.split(
        jax.random.fold_in(wrap_key(make_root(0)), number), sums.scalars.shape[0] - 2
    )
    at_once = min(max(_DRAWS_AT_ONCE // rows.num_examples, 1), len(keys))
    resampled = jax.lax.map(resample, keys, batch_size=at_once)
    totals = jax.tree.map(lambda values: jnp.sum(values, axis=0), terms)
    distances = jax.tree.map(jnp.zeros_like, totals)
    distances = distances._replace(
        scalars=_square_distances(terms.scalars, jnp.sum(sums.scalars[0], axis=0))
    )
    added = jax.tree.map(
        lambda first, middle, last: jnp.concatenate(
            [first[jnp.newaxis], middle, last[jnp.newaxis]]
        ),
        totals,
        resampled,
        distances,
    )
    return jax.vmap(_metrics.add)(sums, added)


_DRAWS_AT_ONCE = 2**20


def _square_distances(values: jax.Array, before: jax.Array) -> jax.Array:
    """Return what a batch `[B, S]` adds to the sums of squared distances from the means, `[S]`.

    Not sums of squares: of a loss of 20,000 float32 keeps nothing of a spread of 1. Source: Chan,
    Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
    1979.
    """
    number, count = values.shape[0], before[-1]
    mean = jnp.mean(values, axis=0)
    apart = mean - before / jnp.maximum(count, 1)
    within = jnp.sum((values - mean[jnp.newaxis]) ** 2, axis=0)
    return within + apart**2 * (count * number / (count + number))


def half_step(
    program: Probe,
    variables: Variables,
    key: jax.Array,
    begin: jax.Array,
    feed: DeviceFeed,
    rows: Rows,
) -> jax.Array:
    """Return the numbers that may be no means, `[N]`, for half of a batch, from row `begin` on."""
    feed, half = rows.cut(feed, program.options.mesh, "whole"), rows.num_examples // 2
    part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, half), dict(feed))
    values = run_program(program, variables, part, half, wrap_key(key)).returned.values
    numbers = [values[number] for number in program.structure.list_doubted()]
    return jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])


def infer_step(
    program: Probe, variables: Variables, feed: DeviceFeed, rows: Rows
) -> tuple[_metrics.Value, ...]:
    key = wrap_key(make_root(0))
    returned = _forward(program, variables, key, feed, rows)
    return spread_rows(returned.values, program, rows)


def check_ids(program: Probe, variables: Variables, batch: DeviceBatch) -> None:
    """Raise if a layer of an infer program, with variables on the host, looks up unknown ids."""
    host = variables, _metrics.fetch(dict(batch.feed))
    with jax.disable_jit():
        variables, feed = jax.tree.map(jnp.asarray, host)
        number = batch.size
        rows = Rows(len(jax.tree.leaves(feed)[0]), number, ((0, number),))
        infer_step(program.on_one_device(), variables, feed, rows)


def _forward(
    program: Probe, variables: Variables, key: jax.Array, feed: DeviceFeed, rows: Rows
) -> _metrics.Returned:
    feed = rows.cut(feed, program.options.mesh, program.layout)
    return run_program(program, variables, feed, rows.num_examples, key).returned


def spread_rows(
    values: Sequence[_metrics.Value], program: Probe, rows: Rows
) -> tuple[_metrics.Value, ...]:
    """Return values whose rows of examples lie where the batch's do, to leave the devices so."""
    spread = functools.partial(rows.spread, mesh=program.options.mesh, layout=program.layout)
    pairs: Any = zip(values, program.structure.items, strict=True)
    return tuple([spread(x, item.rows) if item.rows else x for x, item in pairs])


def measure(params: Params, gradients: Params, steps: Params) -> Statistics:
    """Return the norms of each parameter, its gradient and its step, and their histograms."""
    trees = [_parameter_names.flatten(tree) for tree in (params, gradients, steps)]
    # Of a complex parameter the sizes; bfloat16 has too few digits for sums.
    columns = [
        [jnp.abs(x) if jnp.iscomplexobj(x) else x.astype(jnp.float32) for x in column]
        for column in zip(*[[tree[path] for path in sorted(tree)] for tree in trees], strict=True)
    ]
    norms = [[jnp.linalg.norm(x.ravel()) for x in column] for column in columns]
    bins = [[_count(x) for x in column[1:]] for column in columns]
    lows, highs, counts = (
        jnp.stack(
            [jnp.stack([counted[k] for counted in column]) for column in zip(*bins, strict=True)]
        )
        for k in range(3)
    )
    return Statistics(jnp.array(norms).T, lows, highs, counts)


def _count(values: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the least and the greatest finite value, and how many are in each bin between."""
    is_finite = jnp.isfinite(values)
    is_any = jnp.any(is_finite)
    low = jnp.where(is_any, jnp.min(values, where=is_finite, initial=jnp.inf), 0.0)
    high = jnp.where(is_any, jnp.max(values, where=is_finite, initial=-jnp.inf), 0.0)
    # In float32 the width of a bin may come out as 0.
    width = jnp.maximum((high - low) / NUM_BINS, jnp.finfo(jnp.float32).tiny)
    bins = jnp.clip(jnp.floor((values - low) / width), 0, NUM_BINS - 1)
    bins = jnp.where(is_finite, bins, -1.0).ravel()
    # A CPU adds one after the other, 36 ms for 3.2 million values, where thirty sums take 233.
    # An accelerator's threads would wait for each other at thirty places.
    counts = lax.platform_dependent(bins, cpu=_scatter, default=_sum_by_bin)
    return low, high, counts


def _scatter(bins: jax.Array) -> jax.Array:
    places = jnp.where(bins < 0, NUM_BINS, bins).astype(jnp.int32)
    return jnp.zeros(NUM_BINS + 1, jnp.int32).at[places].add(1)[:NUM_BINS]


def _sum_by_bin(bins: jax.Array) -> jax.Array:
    return jnp.stack([jnp.sum(bins == k, dtype=jnp.int32) for k in range(NUM_BINS)])

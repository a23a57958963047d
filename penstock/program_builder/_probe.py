"""Probes: a program function run abstractly, once, to learn what it needs and what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh, PartitionSpec

from penstock import _mesh, _metrics
from penstock._errors import ProgramError, listed, nearest
from penstock.layers import _frame, sowing
from penstock.program_builder import _flax_modules, _sites, _untrained
from penstock.program_builder._advice import advice_on
from penstock.program_builder._options import ProgramOptions
from penstock.program_builder._tree import Path, flatten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What one program function does in one mode.

    Attributes:
      specs: the entries that penstock's layers asked for, by name, in order.
      named: everything with an automatic name, and the user's lines that made it.
      module_shapes: shapes and dtypes of what flax modules asked for, by collection and path.
      feed_specs: the inputs, by name, in the order of their `layers.data` calls.
      structure: how the returned values are arranged.
      shapes: their shapes, with the probe's batch size.
      rows: for each query of a frame, whether an array had a batch axis; replayed by real frames.
      module_rows: the same for the inputs of flax modules, by path.
      unweighted: labels of returned scalars that depend on the inputs but not on the example
        weights: they would count the padding of a short batch.
      sown: collections of flax modules whose values the function asks for.
      has_convolution: whether there is one anywhere, nested functions included.
      options: of the builder; the precision is one of them.
    """

    function: Callable[[], Any]
    mode: _frame.Mode
    specs: dict[str, _frame.ParameterSpec]
    named: _sites.Named
    module_shapes: dict[str, dict[Path, jax.ShapeDtypeStruct]]
    feed_specs: dict[str, _frame.FeedSpec]
    structure: _metrics.Structure
    shapes: tuple[tuple[int, ...], ...]
    rows: list[int]
    module_rows: dict[Path, int]
    unweighted: tuple[str, ...]
    sown: frozenset[str]
    has_convolution: bool
    options: ProgramOptions

    def check_padding(self, mode: str, count: int, size: int) -> None:
        """Raise if a batch of `count` examples, padded to `size`, would be averaged with padding.

        Raises:
          ProgramError: naming what does not use the example weights.
        """
        if self.unweighted:
            raise ProgramError(
                f"{owner_of(self.function, mode)} got a batch of {count} examples padded to "
                f"{size}, expected a full batch: {', '.join(self.unweighted)} does not use the "
                "example weights and would count the padding. Use layers.mean in place of "
                "jnp.mean, layers.reduce_sum in place of jnp.sum, or leave the rest out: "
                "readers.arrays takes drop_remainder=True, readers.batch drop_last=True."
            )

    def shape_table(self) -> dict[tuple[str, Path], tuple[tuple[int, ...], Any]]:
        """Return shape and dtype of every entry of the tree by collection and path."""
        table: dict[tuple[str, Path], Any] = {
            (spec.collection, spec.path): (spec.shape, spec.dtype) for spec in self.specs.values()
        }
        ours = {spec.path for spec in self.specs.values()}
        for collection, entries in self.module_shapes.items():
            for path, entry in entries.items():
                for prefix in ours.intersection(path[: n + 1] for n in range(len(path))):
                    raise ProgramError(
                        f"a flax module got the name of penstock's own {'/'.join(prefix)!r}. "
                        "Give one of the two another name."
                    )
                table[collection, path] = (entry.shape, entry.dtype)
        return table


def owner_of(function: Callable[[], Any], mode: str) -> str:
    """Return how errors name a program."""
    return f"the {mode} program of {getattr(function, '__name__', repr(function))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One run of a program function: values in order, the loss reduced to a scalar."""

    values: list[jax.Array]
    structure: _metrics.Structure
    modules: _sites.Named
    module_updates: dict[str, Any]
    sown: frozenset[str]


def evaluate(
    function: Callable[[], Any], frame: _frame.Frame, sown: frozenset[str] = frozenset()
) -> Evaluated:
    """Run a program function inside `frame`, in the trace that is current.

    On a probe `module_updates` holds every variable that flax modules asked for, otherwise their
    new running statistics.

    Raises:
      ProgramError: nothing is returned, or the loss is neither a scalar nor a vector over examples.
        Errors of the function itself pass, with a note that names the program.
    """
    owner = owner_of(function, frame.mode)
    rngs = {
        "params": jax.random.fold_in(frame.key, 0),
        "dropout": jax.random.fold_in(frame.key, 1),
    }
    module = _frame.ScopeModule()
    modules: _sites.Named = []
    try:
        with (
            _frame.opened(frame),
            _flax_modules.following_examples(frame),
            sowing.gathering(sown) as gathered,
        ):
            options: Any = {"rngs": rngs, "method": lambda m: gathered.run(m, function)}
            if frame.is_probe:
                with _sites.intercepting(modules):
                    # All collections: what a module sows would be left out, without a word.
                    returned, updates = module.init_with_output(mutable=True, **options)
            else:
                statistics = ["batch_stats"] if frame.is_training else []
                returned, updates = module.apply(
                    dict(frame.variables), mutable=[*statistics, *sown], **options
                )
    except Exception as error:
        error.add_note(f"While tracing {owner}.")
        advice = advice_on(error, owner)
        if advice:
            error.add_note(advice)
        raise
    structure, values = _metrics.structure_of(returned, owner)
    if frame.mode != "infer":
        keys = structure.keys or ()
        loss_index = keys.index("loss") if "loss" in keys else 0
        if structure.is_nested[loss_index]:
            raise ProgramError(
                f"{owner} has {structure.label(loss_index)} where the loss is expected: an array, "
                "first or under the key 'loss', and not nested. It is minimised. Return the loss "
                "first, nested metrics after it."
            )
        structure = dataclasses.replace(structure, loss_index=loss_index)
        values[loss_index] = _scalar_loss(values[loss_index], frame, owner)
    return Evaluated(
        values=values,
        structure=structure,
        modules=modules,
        module_updates={name: updates[name] for name in set(updates) - gathered.collections},
        sown=frozenset(gathered.collections),
    )


def _scalar_loss(loss: jax.Array, frame: _frame.Frame, owner: str) -> jax.Array:
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise ProgramError(
            f"{owner} got a loss of dtype {loss.dtype}, expected a floating dtype. The first value "
            "returned is minimised. Return the loss first, metrics after it."
        )
    if loss.ndim == 0:
        return loss
    if loss.size == frame.batch_size and loss.shape[0] == frame.batch_size:
        return frame.mean(loss)
    shown = ", ".join("B" if size == frame.batch_size else str(size) for size in loss.shape)
    raise ProgramError(
        f"{owner} got a loss of shape [{shown}], expected a scalar, [B] or [B, 1]. The first value "
        "returned is minimised. Reduce it, e.g. with layers.mean."
    )


def probe(
    function: Callable[[], Any], mode: _frame.Mode, mesh: Mesh, options: ProgramOptions
) -> Probe:
    """Run a program function without values, with a batch size no layer is likely to have."""
    seen: dict[str, Any] = {}

    # The key and the step go in, so that what is drawn anew in each step is told from constants.
    def body(
        root: jax.Array, step: jax.Array, anchor: jax.Array, weights: jax.Array
    ) -> list[jax.Array]:
        frame = _frame.Frame(
            mode=mode,
            variables={},
            feed=None,
            weights=weights,
            key=jax.random.wrap_key_data(root),
            num_devices=mesh.size,
            rows=[],
            anchor=anchor,
            step=step,
            compute_dtype=options.precision.compute_dtype,
            is_frozen=options.is_frozen,
        )
        seen["frame"], seen["result"] = frame, evaluate(function, frame)
        return [jnp.mean(value) for value in seen["result"].values]

    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(*[PartitionSpec()] * 3, PartitionSpec(_mesh.AXIS)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    jaxpr = jax.make_jaxpr(sharded)(*_inputs(_frame.PROBE_BATCH_SIZE * mesh.size))
    frame, result = seen["frame"], seen["result"]
    shapes = tuple(value.shape for value in result.values)
    rows = tuple(_frame.rows_per_example(shape, _frame.PROBE_BATCH_SIZE) for shape in shapes)
    body_jaxpr = jaxpr.jaxpr.eqns[-1].params["jaxpr"]
    is_scalar = tuple(not shape for shape in shapes)
    if mode == "train":
        owner = owner_of(function, mode)
        _untrained.check_constants(function, jaxpr, result.structure.loss_index, owner)
    structure = dataclasses.replace(result.structure, rows=rows, is_scalar=is_scalar)
    return Probe(
        function=function,
        mode=mode,
        specs=frame.specs,
        named=_sites.names_of(frame.specs, result.modules),
        module_shapes=_module_shapes(result.module_updates),
        feed_specs=frame.feed_specs,
        structure=structure,
        shapes=shapes,
        rows=frame.rows,
        module_rows=frame.module_rows,
        unweighted=_unweighted(body_jaxpr, structure),
        sown=result.sown,
        has_convolution=_has_convolution(body_jaxpr),
        options=options,
    )


def _inputs(size: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of a root key, a step's number, an anchor and example weights."""
    root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    step, anchor = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32))
    return [root, step, anchor, jax.ShapeDtypeStruct((size,), jnp.float32)]


def _has_convolution(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            return True
        if any(_has_convolution(inner) for inner in jaxprs_in_params(equation.params)):
            return True
    return False


def _module_shapes(variables: Mapping[str, Any]) -> dict[str, dict[Path, jax.ShapeDtypeStruct]]:
    unknown = sorted(set(variables) - {"params", "batch_stats"})
    if unknown:
        raise ProgramError(
            f"a flax module got the variable collections {unknown}, expected 'params' and "
            "'batch_stats' only. A program carries nothing else from step to step. Of what modules "
            f"sow ask for it: layers.sown({unknown[0]!r})."
        )
    return {
        collection: {
            path: jax.ShapeDtypeStruct(value.shape, value.dtype)
            for path, value in flatten(tree).items()
        }
        for collection, tree in variables.items()
    }


def _unweighted(jaxpr: Any, structure: _metrics.Structure) -> tuple[str, ...]:
    """Return labels of values without batch axis that meet the inputs but not the weights.

    Walks the trace backwards from each value; an equation needs all of its inputs. A mean that
    meets the weights elsewhere (through batch norm, say) is not noticed.
    """
    anchor, weights = jaxpr.invars[-2:]  # after constants of the function
    found = []
    for number, (value, rows) in enumerate(zip(jaxpr.outvars, structure.rows, strict=True)):
        needed = {value} if not hasattr(value, "val") else set()
        for equation in reversed(jaxpr.eqns):
            if needed.intersection(equation.outvars):
                needed.update(v for v in equation.invars if not hasattr(v, "val"))
        if not rows and anchor in needed and weights not in needed:
            found.append(structure.label(number))
    return tuple(found)


def compare(train: Probe, other: Probe) -> None:
    """Raise unless `other` asks for a part of the parameter tree of `train`, under its names.

    Raises:
      ProgramError: naming the first difference.
    """
    owner, expected = owner_of(other.function, other.mode), owner_of(train.function, train.mode)
    ours, theirs = train.shape_table(), other.shape_table()
    _sites.check_modes(train.named, other.named, expected, owner)
    for (collection, path), entry in theirs.items():
        name = "/".join(path)
        if (collection, path) not in ours:
            raise ProgramError(
                f"{owner} got the parameter {name!r}, expected only parameters of {expected}: "
                f"{listed('/'.join(p) for c, p in ours if c == collection)}. All programs share "
                "one parameter tree. Create the same layers in the same order in every mode, or "
                "name them." + nearest(name, ["/".join(p) for _, p in ours])
            )
        if ours[collection, path] != entry:
            raise ProgramError(
                f"{owner} got {name!r} with shape {entry[0]} and dtype {entry[1]}, expected shape "
                f"{ours[collection, path][0]} and dtype {ours[collection, path][1]} as in "
                f"{expected}. A layer that only one of them has shifts automatic names. Give it a "
                "name, create it last, or put it in a layers.scope."
            )

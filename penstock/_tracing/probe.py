"""Probes: a program function run abstractly, to learn what it needs and what it returns.

It is run with two batch sizes: what differs is the batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike

from penstock import _mesh
from penstock._errors import ProgramError, listed, nearest
from penstock._program.examples import (
    PROBE_BATCH_SIZES,
    RowAnswers,
    compare_rows,
    format_shape,
    name_batch,
)
from penstock._program.frame import Frame
from penstock._program.options import ProgramOptions
from penstock._program.parameter_tree import Path, flatten
from penstock._program.requests import Mode, ParameterSpec, Variables
from penstock._tracing import name_checks, untrained
from penstock._tracing.batch_dependence import DivergedError, Traces, check_split
from penstock._tracing.evaluation import Evaluated, Runnable, evaluate, name_program
from penstock._tracing.kinds import SAME, Kind, Reason, classify_constant
from penstock._tracing.operation import get_aval

ShapeTable: TypeAlias = dict[tuple[str, Path], tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every entry of the parameter tree, by collection and path."""


class Trace(NamedTuple):
    """The operations of one abstract run.

    Attributes:
      whole: the closed trace, a `shard_map` at its end.
      jaxpr: the trace of the program function in it.
    """

    whole: ClosedJaxpr
    jaxpr: Jaxpr

    @property
    def constants(self) -> list[ArrayLike | None]:
        """The values of the constants that `jaxpr` takes in front, None where not known."""
        known = dict(zip(self.whole.jaxpr.constvars, self.whole.consts, strict=True))
        call = self.whole.jaxpr.eqns[-1]
        # The last four are the inputs of `_trace`; what is in front was closed over.
        given = call.invars[: len(self.jaxpr.invars) - 4]
        return [v.val if isinstance(v, Literal) else known.get(v) for v in given]

    def find_primitives(self) -> set[str]:
        """Return the names of all operations, nested ones too; `CONSTANTS` if there are any."""
        found = {untrained.CONSTANTS} if self.whole.consts else set[str]()
        _add_primitives(self.jaxpr, found)
        return found


class ProbeRun(NamedTuple):
    """One abstract run of a program function: what it asked for, and what it computes.

    Attributes:
      rows: what it was told of batch axes.
      shapes: those of what was returned.
    """

    frame: Frame
    result: Evaluated
    trace: Trace
    rows: RowAnswers
    shapes: tuple[tuple[int, ...], ...]


def _add_primitives(jaxpr: Jaxpr, found: set[str]) -> None:
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(each, "eqns"):
                    if getattr(each, "consts", None):
                        found.add(untrained.CONSTANTS)
                    _add_primitives(getattr(each, "jaxpr", each), found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What one program function does in one mode.

    Attributes:
      program: what real runs need of it.
      specs: the entries that penstock's layers asked for, by name, in order.
      named: everything with an automatic name, and the user's lines that made it.
      module_shapes: shapes and dtypes of what flax modules asked for, by collection and path.
      shapes: of the returned values, with the probe's batch size.
      traces: of both batch sizes.
      has_micro_batches: whether the batch is cut into micro-batches.
      has_convolution: whether there is one anywhere, nested functions included.
    """

    program: Runnable
    specs: dict[str, ParameterSpec]
    named: name_checks.Named
    module_shapes: dict[str, dict[Path, jax.ShapeDtypeStruct]]
    shapes: tuple[tuple[int, ...], ...]
    traces: tuple[Trace, Trace]
    has_micro_batches: bool
    has_convolution: bool

    @functools.cached_property
    def kinds(self) -> list[Kind]:
        """What each returned value is to the batch.

        Found when it is first asked for. On one device nobody asks but a short batch, and following
        a trace takes longer than making it.
        """
        return _follow(*self.traces, self.has_micro_batches)

    def check_padding(self, mode: str, count: int, size: int) -> None:
        """Raise if a batch of `count` examples, padded to `size`, would be averaged with padding.

        Raises:
          ProgramError: naming what does not use the example weights.
        """
        label = self.program.structure.label
        padded = [f"{label(n)} ({k.padding})" for n, k in enumerate(self.kinds) if k.padding]
        if padded:
            raise ProgramError(
                f"{name_program(self.program.function, mode)} got a batch of {count} examples "
                f"padded to {size}, expected a full batch: {', '.join(padded)} does not use the "
                "example weights and would count the padding. Use layers.mean in place of "
                "jnp.mean, layers.reduce_sum in place of jnp.sum, or leave the rest out: "
                "readers.arrays takes drop_remainder=True, readers.batch drop_last=True."
            )

    @functools.cached_property
    def shape_table(self) -> ShapeTable:
        """Shape and dtype of every entry of the tree by collection and path."""
        table: ShapeTable = {
            (spec.collection, spec.path): (spec.shape, spec.dtype) for spec in self.specs.values()
        }
        ours = {spec.path for spec in self.specs.values()}
        for collection, entries in self.module_shapes.items():
            for path, entry in entries.items():
                # A path that is a leaf of ours cannot be a folder of a module's.
                for prefix in ours.intersection(path[: n + 1] for n in range(len(path))):
                    raise ProgramError(
                        f"a flax module got the name of penstock's own {'/'.join(prefix)!r}. "
                        "Give one of the two another name."
                    )
                table[collection, path] = (entry.shape, entry.dtype)
        return table


def probe(function: Callable[[], object], mode: Mode, mesh: Mesh, options: ProgramOptions) -> Probe:
    """Run a program function without values, with two batch sizes: what differs is the batch.

    Raises:
      ProgramError: something that is returned has its batch axis elsewhere than in front, or would
        differ between one device and those of the mesh.
    """
    first, second = _trace_twice(function, mode, mesh, options)
    frame, result = first.frame, first.result
    owner = name_program(function, mode)
    rows = tuple(
        [
            _find_returned_rows(a, b, owner, result.structure.label(number))
            for number, (a, b) in enumerate(zip(first.shapes, second.shapes, strict=True))
        ]
    )
    is_scalar = tuple([not shape for shape in first.shapes])
    structure = dataclasses.replace(result.structure, rows=rows, is_scalar=is_scalar)
    # One walk over the trace tells whether the search for constants below can find any.
    primitives = first.trace.find_primitives()
    if mode == "train" and primitives & untrained.SOURCES:
        untrained.check_constants(function, first.trace.whole, structure.loss_index, owner)
    program = Runnable(
        function=function,
        mode=mode,
        feed_specs=frame.requests.feed_specs,
        structure=structure,
        rows=first.rows,
        sown=result.sown,
        options=options,
    )
    found = Probe(
        program=program,
        specs=frame.requests.specs,
        named=name_checks.list_names(frame.requests.specs, result.modules),
        module_shapes=_read_module_shapes(result.module_updates),
        shapes=first.shapes,
        traces=(first.trace, second.trace),
        has_micro_batches=mode == "train" and options.num_micro_batches > 1,
        has_convolution="conv_general_dilated" in primitives,
    )
    # On one device alone with whole batches, nothing is split and nothing need be followed.
    if mesh.size > 1 or found.has_micro_batches:
        check_split(found.kinds, structure, owner, mesh.size)
    return found


def _trace_twice(
    function: Callable[[], object], mode: Mode, mesh: Mesh, options: ProgramOptions
) -> tuple[ProbeRun, ProbeRun]:
    """Return the traces of a program for both batch sizes, with the same answers about rows.

    Raises:
      Exception: of the function; its message names the batch size `B`.
    """
    trace = functools.partial(_trace, function, mode, mesh, options)
    first_size, second_size = PROBE_BATCH_SIZES
    try:
        first = trace(RowAnswers(first_size))
    except Exception as error:
        _name_batch(error, lambda: trace(RowAnswers(second_size)))
        raise
    second = trace(RowAnswers(second_size, first=first.rows))
    # Guessed wrong, for a layer as wide as the first batch: traced again with what is known.
    if not second.rows.agrees_with(first.rows):
        first = trace(RowAnswers(first_size, known=second.rows))
    return first, second


def _trace(
    function: Callable[[], object],
    mode: Mode,
    mesh: Mesh,
    options: ProgramOptions,
    rows: RowAnswers,
) -> ProbeRun:
    seen: dict[str, Any] = {}

    # The key and the step go in, so that what each step draws is told from constants.
    def body(
        root: jax.Array, step: jax.Array, anchor: jax.Array, weights: jax.Array
    ) -> list[jax.Array]:
        frame = Frame(
            mode=mode,
            variables={},
            feed=None,
            weights=weights,
            key=jax.random.wrap_key_data(root),
            num_devices=mesh.size,
            rows=rows,
            anchor=anchor,
            step=step,
            has_micro_batches=mode == "train" and options.num_micro_batches > 1,
            compute_dtype=options.precision.compute_dtype,
            is_frozen=options.is_frozen,
        )
        seen["frame"], seen["result"] = frame, evaluate(function, frame)
        return seen["result"].values

    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(*[PartitionSpec()] * 3, PartitionSpec(_mesh.AXIS)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    # Inside shard_map, as real runs are: collectives of users find their axis.
    whole = jax.make_jaxpr(sharded)(*_inputs(rows.batch_size * mesh.size))
    body_jaxpr = whole.jaxpr.eqns[-1].params["jaxpr"]
    result = seen["result"]
    shapes = tuple([value.shape for value in result.values])
    return ProbeRun(seen["frame"], result, Trace(whole, body_jaxpr), rows, shapes)


def _inputs(size: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of a root key, a step's number, an anchor and example weights."""
    root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    step, anchor = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    return [root, step, anchor, jax.ShapeDtypeStruct((size,), jnp.float32)]


def _name_batch(error: Exception, rerun: Callable[[], object]) -> None:
    """Put `B` in place of the probe's batch size in an error's message."""
    try:
        rerun()
    except Exception as other:
        # Only the same error with other numbers tells which of them is the batch size.
        text, its = (each.args[0] if each.args else None for each in (error, other))
        if type(error) is type(other) and isinstance(text, str) and isinstance(its, str):
            error.args = (name_batch(text, its), *error.args[1:])


def _find_returned_rows(
    shape: tuple[int, ...], other: tuple[int, ...], owner: str, label: str
) -> int:
    """Return how many rows of a returned value belong to one example, 0 without a batch axis."""
    rows = compare_rows(shape, other)
    if rows is None:
        raise ProgramError(
            f"{owner} has {label} of shape {format_shape(shape, other)}, expected the batch axis B "
            "first and nowhere else, or a value without one. Rows are split over devices, and "
            "those of padding cut off, along axis 0. Move the batch axis to the front, e.g. with "
            "jnp.moveaxis, or reduce it with layers.mean."
        )
    return rows


def _follow(first: Trace, second: Trace, has_micro_batches: bool) -> list[Kind]:
    """Return what each returned value is to the batch."""
    # Constants of the function come first.
    consts = [
        classify_constant(a, b, PROBE_BATCH_SIZES)
        if a is not None and b is not None
        else Kind("same" if get_aval(x).shape == get_aval(y).shape else "index")
        for a, b, x, y in zip(
            first.constants,
            second.constants,
            first.jaxpr.invars,
            second.jaxpr.invars,
            strict=False,
        )
    ]
    # The inputs of `_trace`: root key, step, anchor and example weights.
    weights = Kind("rows", is_weighted=True, is_weights=True)
    traces = Traces(PROBE_BATCH_SIZES, has_micro_batches)
    try:
        return traces.follow(
            first.jaxpr, second.jaxpr, [*consts, SAME, SAME, Kind("feed"), weights]
        )
    # Not equation by equation the same: nothing is known of any result.
    except DivergedError:
        reason = Reason("Python code that does something else for another batch size", "")
        return [Kind("other", why=reason, padding=reason)] * len(first.jaxpr.outvars)


def _read_module_shapes(
    variables: Variables,
) -> dict[str, dict[Path, jax.ShapeDtypeStruct]]:
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


def compare(train: Probe, other: Probe) -> None:
    """Raise unless `other` asks for a part of the parameter tree of `train`, under its names.

    Raises:
      ProgramError: naming the first difference.
    """
    owner, expected = other.program.name, train.program.name
    ours, theirs = train.shape_table, other.shape_table
    # Before shapes are compared: a shift is the cause, another shape only its sign.
    name_checks.check_modes(train.named, other.named, expected, owner)
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

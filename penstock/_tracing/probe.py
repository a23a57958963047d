"""Probes: a program function run abstractly, to learn what it needs and what it returns.

It is run with two batch sizes: what differs is the batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike

from penstock import _mesh
from penstock._errors import ProgramError
from penstock._parameter_names import Key, Path, spell
from penstock._program.examples import (
    PROBE_BATCH_SIZES,
    RowAnswers,
    compare_rows,
    format_shape,
    name_batch,
)
from penstock._program.frame import Frame
from penstock._program.options import ProgramOptions
from penstock._program.parameter_tree import flatten
from penstock._program.requests import Ids, Mode, ParameterSpec, Variables
from penstock._tracing import untrained
from penstock._tracing.batch_dependence import (
    check_split,
    follow_traces,
    is_same_when_split,
)
from penstock._tracing.evaluation import Evaluated, Named, Runnable, evaluate, name_program
from penstock._tracing.kinds import Kind

ShapeTable: TypeAlias = dict[Key, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every entry of the parameter tree, by collection and path."""


_OBSERVERS = {"debug_callback", "debug_print", "io_callback"}


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
      specs: the entries that penstock's layers asked for, by path, in order.
      named: everything with an automatic name, and the user's lines that made it.
      module_shapes: shapes and dtypes of what flax modules asked for, by collection and path.
      shapes: of the returned values, with the probe's batch size.
      traces: of both batch sizes.
      is_mode_read: whether the function has asked for the mode.
      has_micro_batches: whether the batch is cut into micro-batches.
      has_convolution: whether there is one anywhere, nested functions included.
      followed: what each returned value is to the batch, where it is known already.
      lookups: tables of ids that the program computes.
    """

    program: Runnable
    specs: dict[Path, ParameterSpec]
    named: Named
    module_shapes: dict[str, dict[Path, jax.ShapeDtypeStruct]]
    shapes: tuple[tuple[int, ...], ...]
    traces: tuple[Trace, Trace]
    is_mode_read: bool
    has_micro_batches: bool
    has_convolution: bool
    followed: list[Kind] | None
    lookups: tuple[Ids, ...]

    def in_test_mode(self, num_devices: int) -> Probe:
        """Return the probe in test mode of a function that has not asked for the mode.

        It does the same there, and need not run again.
        """
        program = dataclasses.replace(self.program, mode="test")
        found = dataclasses.replace(self, program=program, has_micro_batches=False)
        # Training was checked with micro-batches, of which a test program has none.
        if self.has_micro_batches:
            found.check_split(num_devices)
        return found

    @functools.cached_property
    def kinds(self) -> list[Kind]:
        """What each returned value is to the batch.

        Found when it is first asked for. On one device nobody asks but a short batch, and following
        a trace takes longer than making it.
        """
        return self.followed or _follow(self.traces, has_micro_batches=self.has_micro_batches)

    def check_split(self, num_devices: int) -> None:
        """Raise if what is returned would differ between one device and several, or micro-batches.

        Raises:
          ProgramError: naming it.
        """
        # On one device alone with whole batches, nothing is split and nothing need be followed.
        if num_devices > 1 or self.has_micro_batches:
            check_split(self.kinds, self.program.structure, self.program.name, num_devices)

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

    def for_accelerators(self) -> Probe:
        """Return the same program, computed as on accelerators."""
        return dataclasses.replace(self, program=dataclasses.replace(self.program, is_on_cpu=False))

    @functools.cached_property
    def shape_table(self) -> ShapeTable:
        """Shape and dtype of every entry of the tree by collection and path."""
        table: ShapeTable = {
            (spec.collection, path): (spec.shape, spec.dtype) for path, spec in self.specs.items()
        }
        for collection, entries in self.module_shapes.items():
            for path, entry in entries.items():
                # A path that is a leaf of ours cannot be a folder of a module's.
                for prefix in self.specs.keys() & {path[: n + 1] for n in range(len(path))}:
                    raise ProgramError(
                        f"a flax module got the name of penstock's own {spell(prefix)!r}. "
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
    followed = None
    # A debug print or callback shows the values of the whole batch, so those must be there.
    if mesh.size > 1 and mode != "infer" and not primitives & _OBSERVERS:
        followed = _follow_apart(first, second, rows)
    program = Runnable(
        function=function,
        mode=mode,
        feed_specs=frame.requests.feed_specs,
        structure=structure,
        shapes=first.shapes if frame.requests.has_sequences else (),
        rows=first.rows,
        sown=result.sown,
        options=options,
        is_on_cpu=_mesh.is_on_cpu(mesh),
        counts_words=bool(frame.examples.word_counts),
        reduces_once=followed is not None,
    )
    specs = frame.requests.specs
    counted = [(spec.stack, path[:-1]) for path, spec in specs.items() if spec.is_automatic]
    found = Probe(
        program=program,
        specs=specs,
        named=[*counted, *result.modules],
        module_shapes=_read_module_shapes(result.module_updates),
        shapes=first.shapes,
        traces=(first.trace, second.trace),
        is_mode_read=frame.is_mode_read or second.frame.is_mode_read,
        has_micro_batches=mode == "train" and options.num_micro_batches > 1,
        has_convolution="conv_general_dilated" in primitives,
        followed=followed,
        lookups=tuple(frame.requests.lookups),
    )
    found.check_split(mesh.size)
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


def _follow_apart(first: ProbeRun, second: ProbeRun, rows: Sequence[int]) -> list[Kind] | None:
    """Return what each returned value is to the batch if the devices compute apart.

    None where they cannot.
    """
    frame = first.frame
    # Only what is returned is followed: statistics of users' modules may be made of anything.
    # Not `is_training`, which notes that the function asked for the mode.
    has_statistics = frame.mode == "train" and "batch_stats" in first.result.module_updates
    if frame.examples.needs_all_devices or has_statistics:
        return None
    kinds = _follow((first.trace, second.trace), has_micro_batches=True, is_apart=True)
    return kinds if all(map(is_same_when_split, kinds, rows)) else None


def _follow(traces: Sequence[Trace], **how: bool) -> list[Kind]:
    return follow_traces([t.jaxpr for t in traces], [t.constants for t in traces], **how)


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

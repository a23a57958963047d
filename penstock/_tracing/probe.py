"""Probes: a program function run abstractly, to learn what it needs and what it returns.

Where it returns more than single numbers it is run with two batch sizes: what differs is the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import Mesh

from penstock import _mesh, _metrics
from penstock._errors import ProgramError
from penstock._mesh import Layout
from penstock._parameter_names import Key, Path, flatten, nest, spell
from penstock._program.frame import Frame, make_root, wrap_key
from penstock._program.precision import ProgramOptions
from penstock._program.requests import (
    PROBE_COUNT,
    PROBE_LENGTH,
    DeviceFeed,
    Ids,
    Mode,
    ParameterSpec,
    Variables,
)
from penstock._tracing import untrained
from penstock._tracing.evaluation import Evaluated, Named, Runnable, evaluate, name_program
from penstock.metrics import RowMetric

_LOGGER = logging.getLogger("penstock")

ShapeTable: TypeAlias = dict[Key, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every entry of the parameter tree, by collection and path."""


# One probe of a prime size took a parameter of [502, 3] for a batch. The second costs 10 ms for a
# small network, and 0.7 s for ResNet-50.
PROBE_BATCH_SIZES = (480, 672)
"""The batch sizes of the two probes of a program. They share many divisors, so that a function that
takes its batch apart in halves or eighths is traced too."""


def count_rows(shape: tuple[int, ...], batch_size: int) -> int:
    """Return how many rows of axis 0 belong to one example, 0 when there is no batch axis."""
    # Several rows to an example are a batch axis too: time steps, joined batches.
    if not shape or shape[0] == 0 or shape[0] % batch_size:
        return 0
    return shape[0] // batch_size


def format_shape(shape: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return a shape as errors show it, `[B, 3]`, from the shapes of both probes."""
    first, second = PROBE_BATCH_SIZES
    if len(shape) != len(other):
        return "that the batch size changes"
    sizes = []
    for a, b in zip(shape, other, strict=True):
        is_multiple = a % first == 0 and a * second == b * first
        # Of the first size; that the second has as many is what `is_multiple` says.
        count = "B" if a == first else f"{a // first}*B"
        sizes.append(str(a) if a == b else count if is_multiple else "?")
    return f"[{', '.join(sizes)}]"


_SHAPE_WITH_BATCH = re.compile(r"\(((?:[\d.*B]+, )*(?:\d+\*)?B(?:, [\d.*B]+)*),?\)")
"""A tuple such as `(B, 3)`, which is shown as `[B, 3]`."""


def name_batch(message: str, other: str) -> str:
    """Return a message of the first probe with `B` where its batch size stands.

    Arguments:
      other: the same message of the second probe; what differs between the two are batch sizes.
    """
    first, second = PROBE_BATCH_SIZES
    parts, others = re.split(r"(\d+)", message), re.split(r"(\d+)", other)
    # Another text, and not only other numbers: nothing can be told.
    if parts[::2] != others[::2]:
        return message
    for number in range(1, len(parts), 2):
        a, b = int(parts[number]), int(others[number])
        if a != b and a * second == b * first:
            count = a // first if a % first == 0 else a / first
            parts[number] = "B" if count == 1 else f"{count}*B"
    return _SHAPE_WITH_BATCH.sub(r"[\1]", "".join(parts))


def compare_rows(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """Return the rows per example, from the shapes of one array in both probes.

    0 without a batch axis, None where the batch axis is not the first alone.
    """
    if shape == other:
        return 0
    if len(shape) == len(other) and shape[1:] == other[1:]:
        rows = count_rows(shape, PROBE_BATCH_SIZES[0])
        if rows and rows == count_rows(other, PROBE_BATCH_SIZES[1]):
            return rows
    return None


class ProbeRun(NamedTuple):
    """One abstract run of a program function: what it asked for, and what it computes.

    Attributes:
      shapes: of what was returned, as `jax.ShapeDtypeStruct`.
    """

    frame: Frame
    result: Evaluated
    trace: ClosedJaxpr
    shapes: tuple[Any, ...]


def _find_primitives(trace: ClosedJaxpr) -> set[str]:
    """Return the names of all operations, nested ones too; `CONSTANTS` if there are any."""
    found = {untrained.CONSTANTS} if trace.consts else set[str]()
    _add_primitives(trace.jaxpr, found)
    return found


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
      shape_table: shape and dtype of every entry of the tree.
      is_mode_read: whether the function has asked for the mode.
      has_convolution: whether there is one anywhere, nested functions included.
      trace: of its operations.
      lookups: tables of ids that the program computes.
    """

    program: Runnable
    specs: dict[Path, ParameterSpec]
    named: Named
    module_shapes: dict[str, dict[Path, jax.ShapeDtypeStruct]]
    shape_table: ShapeTable
    is_mode_read: bool
    has_convolution: bool
    trace: ClosedJaxpr
    lookups: tuple[Ids, ...]

    def in_test_mode(self) -> Probe:
        """Return the probe in test mode of a function that has not asked for the mode.

        It does the same there, and need not run again.
        """
        return dataclasses.replace(self, program=dataclasses.replace(self.program, mode="test"))

    def for_accelerators(self) -> Probe:
        """Return the same program, computed as on accelerators."""
        return dataclasses.replace(self, program=dataclasses.replace(self.program, is_on_cpu=False))


def probe(function: Callable[[], object], mode: Mode, mesh: Mesh, options: ProgramOptions) -> Probe:
    """Run a program function without values, with two batch sizes: what differs is the batch.

    Raises:
      ProgramError: something that is returned has its batch axis elsewhere than in front.
      Exception: of the function; its message names the batch size `B`.
    """
    trace = functools.partial(_trace, function, mode, options)
    try:
        run = trace(PROBE_BATCH_SIZES[0])
    except Exception as error:
        _name_batch(error, lambda: trace(PROBE_BATCH_SIZES[1]))
        raise
    frame, result, owner = run.frame, run.result, name_program(function, mode)
    structure = _find_rows(run, lambda: trace(PROBE_BATCH_SIZES[1]), owner)
    module_shapes = _read_module_shapes(result.module_updates)
    table = _make_table(frame.requests.specs, module_shapes)
    # flax's modules make their variables in a probe, and may do else where they have them.
    applied = _trace_applied(function, run, table, options) if module_shapes else run.trace
    # One walk over the trace tells whether the search for constants below can find any.
    primitives = _find_primitives(applied)
    if mode == "train" and primitives & untrained.SOURCES:
        # Of values, of which a metric is several results.
        place = len(jax.tree.leaves(run.shapes[: structure.loss_index]))
        untrained.check_constants(function, applied, place, owner)
    program = Runnable(
        function=function,
        mode=mode,
        feed_specs=frame.requests.feed_specs,
        structure=structure,
        shapes=run.shapes,
        has_sequences=frame.requests.has_sequences,
        sown=result.sown,
        options=options,
        is_on_cpu=_mesh.is_on_cpu(mesh),
        counts_words=bool(frame.word_counts),
        layout=choose_layout(applied.jaxpr, PROBE_BATCH_SIZES[0]),
    )
    if program.layout == "whole" and _mesh.count_parts(mesh) > 1:
        _LOGGER.warning(
            "%s is computed whole on every device: XLA splits one of its operations over the batch "
            "wrongly (a cumulative one, a maximum over windows, a reduction of its own). More "
            "devices make it no faster",
            owner,
        )
    specs = frame.requests.specs
    counted = [(spec.stack, path[:-1]) for path, spec in specs.items() if spec.is_automatic]
    return Probe(
        program=program,
        specs=specs,
        named=[*counted, *result.modules],
        module_shapes=module_shapes,
        shape_table=table,
        is_mode_read=frame.is_mode_read,
        has_convolution="conv_general_dilated" in primitives,
        trace=applied,
        lookups=tuple(frame.requests.lookups),
    )


def _find_rows(run: ProbeRun, run_again: Callable[[], ProbeRun], owner: str) -> _metrics.Structure:
    """Return the structure of what is returned, with what of it has a batch axis.

    Raises:
      ProgramError: a batch axis is not in front.
    """
    structure, sizes = run.result.structure, [jax.tree.leaves(shape) for shape in run.shapes]
    rows = [0] * len(sizes)
    has_axes = [any(leaf.shape for leaf in leaves) for leaves in sizes]
    # Of single numbers nothing is to be told, and a second run is saved.
    others = run_again().shapes if any(has_axes) else run.shapes
    for number, (one, other) in enumerate(zip(run.shapes, others, strict=True)):
        if structure.is_metric[number]:
            _check_metric(one, other, owner, structure.label(number))
        elif has_axes[number]:
            rows[number] = _find_returned_rows(
                one.shape, other.shape, owner, structure.label(number), run.frame.mode
            )
    num_scalars = [sum(not leaf.shape for leaf in leaves) for leaves in sizes]
    return dataclasses.replace(structure, rows=tuple(rows), num_scalars=tuple(num_scalars))


def _check_metric(one: object, other: object, owner: str, label: str) -> None:
    shapes = [[leaf.shape for leaf in jax.tree.leaves(each)] for each in (one, other)]
    if isinstance(one, RowMetric):
        if not all(starmap(compare_rows, zip(*shapes, strict=True))):
            raise ProgramError(
                f"{owner} has a metric that keeps rows as {label}, with shapes {shapes[0]} for "
                f"{PROBE_BATCH_SIZES[0]} examples, expected rows of examples in front of each: a "
                "test joins them along axis 0. Hold sums in a penstock.metrics.Metric."
            )
    elif shapes[0] != shapes[1]:
        raise ProgramError(
            f"{owner} has a metric with a batch axis as {label}, expected sums over the batch: "
            "batches of any size add them up. Sum over axis 0, or derive it from RowMetric."
        )


def _trace(
    function: Callable[[], object], mode: Mode, options: ProgramOptions, batch_size: int
) -> ProbeRun:
    seen: dict[str, Any] = {}

    # The key and the step go in, so that what each step draws is told from constants.
    def body(root: jax.Array, step: jax.Array, anchor: jax.Array) -> list[_metrics.Value]:
        frame = Frame(
            mode=mode,
            variables={},
            feed=None,
            batch_size=batch_size,
            key=wrap_key(root),
            anchor=anchor,
            step=step,
            compute_dtype=options.precision.compute_dtype,
            is_frozen=options.is_frozen,
        )
        seen["frame"], seen["result"] = frame, evaluate(function, frame)
        return seen["result"].returned.values

    step, anchor = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    root = jax.eval_shape(lambda: make_root(0))
    trace, shapes = jax.make_jaxpr(body, return_shape=True)(root, step, anchor)
    return ProbeRun(seen["frame"], seen["result"], trace, tuple(shapes))


def _make_table(
    specs: Mapping[Path, ParameterSpec],
    module_shapes: Mapping[str, Mapping[Path, jax.ShapeDtypeStruct]],
) -> ShapeTable:
    """Return shape and dtype of every entry of the tree.

    Raises:
      ProgramError: a flax module and a layer of ours have one name.
    """
    table: ShapeTable = {
        (spec.collection, path): (spec.shape, spec.dtype) for path, spec in specs.items()
    }
    for collection, entries in module_shapes.items():
        for path, entry in entries.items():
            # A path that is a leaf of ours cannot be a folder of a module's.
            for prefix in specs.keys() & {path[: n + 1] for n in range(len(path))}:
                raise ProgramError(
                    f"a flax module got the name of penstock's own {spell(prefix)!r}. "
                    "Give one of the two another name."
                )
            table[collection, path] = (entry.shape, entry.dtype)
    return table


def _trace_applied(
    function: Callable[[], object], run: ProbeRun, table: ShapeTable, options: ProgramOptions
) -> ClosedJaxpr:
    """Return the operations of a run with variables, as real runs have them."""
    probed = run.frame
    variables = {
        name: nest(
            {p: jax.ShapeDtypeStruct(*entry) for (c, p), entry in table.items() if c == name}
        )
        for name in ("params", "batch_stats")
    }
    sizes = (probed.batch_size, PROBE_COUNT, PROBE_LENGTH)
    feed = {
        name: spec.build(sizes, jax.ShapeDtypeStruct)
        for name, spec in probed.requests.feed_specs.items()
    }

    def body(
        root: jax.Array, step: jax.Array, variables: Variables, feed: DeviceFeed
    ) -> list[_metrics.Value]:
        frame = Frame(
            mode=probed.mode,
            variables=variables,
            feed=feed,
            batch_size=probed.batch_size,
            key=wrap_key(root),
            step=step,
            compute_dtype=options.precision.compute_dtype,
            is_frozen=options.is_frozen,
        )
        return evaluate(function, frame, run.result.sown).returned.values

    root, step = jax.eval_shape(lambda: make_root(0)), jax.ShapeDtypeStruct((), jnp.int32)
    return jax.make_jaxpr(body)(root, step, variables, feed)


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
    shape: tuple[int, ...], other: tuple[int, ...], owner: str, label: str, mode: Mode
) -> int:
    """Return how many rows of a returned value belong to one example, 0 without a batch axis."""
    rows = compare_rows(shape, other)
    if rows is None and mode != "infer":
        raise ProgramError(
            f"{owner} has {label} of shape {format_shape(shape, other)}, expected the batch axis B "
            "first and nowhere else, or a value without one. Over batches it is averaged along "
            "axis 0. Move the batch axis to the front, e.g. with jnp.moveaxis, or reduce it with "
            "layers.mean."
        )
    return rows or 0


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


_CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
"""Two of different kinds over one array: the second is silently wrong."""

_REDUCTIONS = {"reduce", "reduce_xor"}
"""Of an operation that the devices' all-reduce does not know: an error on CPU."""


def choose_layout(jaxpr: Jaxpr, batch_size: int) -> Layout:
    """Return how the batch of a program may lie, from its trace with an unlikely batch size."""
    layouts = {_layout_of(each, batch_size) for each in _list_equations(jaxpr)}
    return "whole" if "whole" in layouts else "even" if "even" in layouts else "split"


def _list_equations(jaxpr: Jaxpr) -> list[JaxprEqn]:
    found: list[JaxprEqn] = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(each, "eqns"):
                    found += _list_equations(getattr(each, "jaxpr", each))
    return found


def _layout_of(equation: JaxprEqn, batch_size: int) -> Layout:
    name, params = equation.primitive.name, equation.params
    if name == "sort":
        # Its gradient over a batch that is split unevenly ends the process.
        return "even" if _is_over_batch(equation, [params["dimension"]], batch_size) else "split"
    axes: list[int] = []
    if name in _CUMULATIVE:
        axes = [params["axis"]]
    elif name in _REDUCTIONS:
        axes = list(params.get("dimensions", params.get("axes", ())))
    elif name.startswith(("reduce_window", "select_and_scatter")):
        # The gradient of a maximum over windows of several examples is silently wrong.
        sizes = params.get("window_dimensions", ())
        axes = [axis for axis, size in enumerate(sizes) if size > 1]
    return "whole" if axes and _is_over_batch(equation, axes, batch_size) else "split"


def _is_over_batch(equation: JaxprEqn, axes: list[int], batch_size: int) -> bool:
    """Return whether an operation is along an axis that may be the batch's, by its size."""
    operand: Any = equation.invars[0]
    return any(operand.aval.shape[axis] % batch_size == 0 for axis in axes)

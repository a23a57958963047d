"""Slices, lookups and updates at places that are computed, which ONNX takes as indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from penstock._errors import ExportError
from penstock.onnx_export._graph import Equation, Graph, Value
from penstock.onnx_export._windows import pad


def _slice_at(graph: Graph, equation: Equation, x: Value, *starts: Value) -> Value:
    starts = tuple(graph.op("Reshape", graph.cast(start, np.int64), [1]) for start in starts)
    begin = graph.op("Concat", *starts, axis=0)
    return _cut(graph, x, begin, list(range(len(starts))), equation)


def _cut(graph: Graph, x: Value, begin: Value, axes: list[int], equation: Equation) -> Value:
    """Return the slice that begins at a place on some axes, and is whole on the others."""
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    begin = graph.clip(begin, [shape[axis] - sizes[axis] for axis in axes])
    end = graph.op("Add", begin, graph.sizes([sizes[axis] for axis in axes]))
    return graph.op("Slice", x, begin, end, axes)


def _gather(graph: Graph, equation: Equation, x: Value, indices: Value) -> Value:
    """Take rows by indices, `[..., k]`, of which each gives a place on k axes of `x`."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    sizes, index_shape = params["slice_sizes"], equation.invars[1].aval.shape
    places, batching = list(numbers.start_index_map), list(numbers.operand_batching_dims)
    most = [equation.invars[0].aval.shape[axis] - sizes[axis] for axis in places]
    wide = graph.cast(indices, np.int64)
    # XLA does so where it is promised that all are inside, too.
    rows = safe = graph.clip(wide, most)
    # A slice of a whole axis needs no place.
    columns = [number for number, least in enumerate(most) if least != 0]
    if 0 < len(columns) < len(places):
        is_computed = isinstance(safe, str)
        rows = graph.op("Gather", safe, columns, axis=-1) if is_computed else safe[..., columns]
        places = [places[n] for n in columns]
    if len(index_shape) == 1 and not batching:
        y = _cut(graph, x, rows, places, equation)
        if numbers.collapsed_slice_dims:
            y = graph.op("Squeeze", y, list(numbers.collapsed_slice_dims))
        axes = [("axis", n) for n in range(len(sizes)) if n not in numbers.collapsed_slice_dims]
    else:
        y, axes = _take(graph, x, rows, places, equation)
    return _arrange(graph, equation, y, axes, (wide, safe))


def _take(
    graph: Graph, x: Value, rows: Value, places: list[int], equation: Equation
) -> tuple[Value, list[Any]]:
    """Return what lies at rows of indices, and what each axis of it is of: `rows` or `x`."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    index_shape, along = equation.invars[1].aval.shape, list(numbers.start_indices_batching_dims)
    order = along + [axis for axis in range(len(index_shape) - 1) if axis not in along]
    rows = graph.transpose(rows, [*order, len(order)])
    shape = [index_shape[axis] for axis in order]
    # Slices of several elements are as many indices.
    wide = [axis for axis in places if axis not in numbers.collapsed_slice_dims]
    window = {axis: sizes[axis] for axis in wide}
    rows = _spread(graph, rows, shape, places, window)
    shape += window.values()
    taken = [*(("index", axis) for axis in order), *(("axis", axis) for axis in wide)]
    batching = list(numbers.operand_batching_dims)
    rest = [axis for axis in range(len(sizes)) if axis not in (*places, *batching)]
    if len(places) == 1 and not batching:
        y = graph.op("Gather", x, graph.reshape(rows, shape), axis=places[0])
        before = [axis for axis in rest if axis < places[0]]
        after = rest[len(before) :]
        return y, [*(("axis", n) for n in before), *taken, *(("axis", n) for n in after)]
    x = graph.transpose(x, [*batching, *places, *rest])
    y = graph.op("GatherND", x, rows, batch_dims=len(batching))
    return y, [*taken, *(("axis", axis) for axis in rest)]


def _arrange(
    graph: Graph, equation: Equation, y: Value, axes: list[Any], indices: tuple[Value, Value]
) -> Value:
    """Return rows with their axes in JAX's order, and what it fills in for indices outside."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    out, index_shape = equation.outvars[0].aval, equation.invars[1].aval.shape
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = iter([("axis", axis) for axis in range(len(sizes)) if axis not in dropped])
    index_axes = iter([("index", axis) for axis in range(len(index_shape) - 1)])
    wanted = [
        next(kept if axis in numbers.offset_dims else index_axes) for axis in range(len(out.shape))
    ]
    y = graph.transpose(y, [axes.index(axis) for axis in wanted])
    if equation.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return y
    shape = [n if kind == "index" else 1 for (kind, _), n in zip(wanted, out.shape, strict=True)]
    fill = _fill_value(equation.params["fill_value"], out.dtype)
    return _where_inside(graph, indices, shape, y, fill, out.dtype)


def _fill_value(value: Any, dtype: Any) -> Any:
    if value is None and jnp.issubdtype(dtype, jnp.inexact):
        value = np.nan
    elif value is None and dtype != jnp.bool_:
        is_signed = jnp.issubdtype(dtype, jnp.signedinteger)
        value = jnp.iinfo(dtype).min if is_signed else jnp.iinfo(dtype).max
    return np.asarray(value is None or value, dtype)


def _spread(
    graph: Graph, rows: Value, shape: Sequence[Any], places: list[int], window: dict[int, Any]
) -> Value:
    """Return indices `[..., k]`, of a shape without the last axis, of all elements of a window."""
    if not window:
        return rows
    rows = graph.reshape(rows, [*shape, *[1] * len(window), len(places)])
    steps = np.indices([window.get(axis, 1) for axis in places], np.int64)
    return graph.op("Add", rows, np.moveaxis(steps, 0, -1).reshape(*window.values(), len(places)))


def _update_at(graph: Graph, equation: Equation, x: Value, update: Value, *starts: Value) -> Value:
    shape, sizes = (atom.aval.shape for atom in equation.invars[:2])
    axes = [axis for axis, size in enumerate(shape) if sizes[axis] != size]
    if not axes:
        return update
    places = [graph.op("Reshape", graph.cast(starts[axis], np.int64), [1]) for axis in axes]
    most = [shape[axis] - sizes[axis] for axis in axes]
    rows = graph.clip(graph.op("Concat", *places, axis=0), most)
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    rows = _spread(graph, rows, [], axes, {axis: sizes[axis] for axis in axes})
    x, update = graph.transpose(x, [*axes, *rest]), graph.transpose(update, [*axes, *rest])
    y = graph.op("ScatterND", x, rows, update)
    return graph.transpose(y, np.argsort([*axes, *rest]).tolist())


def _scatter(graph: Graph, equation: Equation, x: Value, indices: Value, update: Value) -> Value:
    """Put windows of an update at places given by indices, `[..., k]`, or add them there."""
    params, (operand, index, source) = equation.params, equation.invars
    numbers, shape = params["dimension_numbers"], operand.aval.shape
    if equation.primitive.name == "scatter" and params["update_jaxpr"] is not None:
        raise ExportError(
            "an update at indices got a function, expected numbers. ONNX has no such update. Write "
            "x.at[i].set(f(x[i])) for x.at[i].apply(f)."
        )
    if numbers.operand_batching_dims:
        raise ExportError(
            "an update at indices got axes that examples share, expected none. ONNX has no such "
            "update. Write it for the batch, without jax.vmap."
        )
    places, rank = list(numbers.scatter_dims_to_operand_dims), len(shape)
    kept = [axis for axis in range(rank) if axis not in numbers.inserted_window_dims]
    axis_of = dict(zip(kept, numbers.update_window_dims, strict=True))
    window = {a: source.aval.shape[axis_of[a]] for a in places if a in axis_of}
    rest = [axis for axis in range(rank) if axis not in places]
    wide = graph.cast(indices, np.int64)
    safe = graph.clip(wide, [shape[axis] - window.get(axis, 1) for axis in places])
    lead = index.aval.shape[:-1]
    x, rows = graph.transpose(x, [*places, *rest]), safe
    if places and params["mode"] == GatherScatterMode.FILL_OR_DROP:
        # What lies outside is put behind the first axis, and cut off with that.
        behind = graph.sizes([shape[places[0]], *[0] * (len(places) - 1)])
        rows = _where_inside(graph, (wide, safe), [*lead, 1], safe, behind, np.int64)
    is_longer = rows is not safe
    if is_longer:
        x = pad(graph, x, [(0, window.get(places[0], 1)), *[(0, 0)] * (rank - 1)])
    rows = _spread(graph, rows, lead, places, window)
    first = [a for a in range(len(source.aval.shape)) if a not in numbers.update_window_dims]
    update = graph.transpose(update, [*first, *(axis_of[axis] for axis in [*window, *rest])])
    reduction = equation.primitive.name.partition("-")[2] or "none"
    if reduction == "sub":
        update, reduction = graph.op("Neg", update), "add"
    y = graph.op("ScatterND", x, rows, update, reduction=reduction)
    if is_longer:
        y = graph.op("Slice", y, [0], graph.sizes([shape[places[0]]]), [0])
    return graph.transpose(y, np.argsort([*places, *rest]).tolist())


def _where_inside(
    graph: Graph,
    indices: tuple[Value, Value],
    shape: Sequence[Any],
    y: Value,
    other: Value,
    dtype: Any,
) -> Value:
    """Return `y` where indices are what they are within bounds, and something else elsewhere."""
    wide, safe = indices
    if not isinstance(safe, str) and np.array_equal(wide, safe):
        return y
    is_inside = graph.cast(graph.op("Equal", wide, safe), np.int32)
    is_inside = graph.op("ReduceMin", is_inside, [-1], keepdims=0)
    is_inside = graph.cast(graph.reshape(is_inside, shape), np.bool_)
    return graph.where(is_inside, y, other, dtype)


RULES = {
    "dynamic_slice": _slice_at,
    "dynamic_update_slice": _update_at,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub", "scatter-mul"), _scatter),
    **dict.fromkeys(("scatter-min", "scatter-max"), _scatter),
}

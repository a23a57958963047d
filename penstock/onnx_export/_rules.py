"""The operations of JAX in those of ONNX, but for windows, loops and lookups.

A rule takes the graph, the equation and the values of its inputs; it returns the result, or a
list of results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock._errors import ExportError, check_known
from penstock.onnx_export._graph import Equation, Graph, Value, storage_dtype
from penstock.onnx_export._windows import flip, pad

Rule = Callable[..., Any]
_END = 2**31 - 1
_WHOLE = (jnp.int32, jnp.int64)
_PRECISIONS = ((5, 10), (8, 7), (8, 23), (11, 52))
"""Bits of exponent and mantissa of floating dtypes, of which those of half are kept as float32."""


def _elementwise(compute: Callable[..., Value]) -> Rule:
    """Return the rule of an operation on numbers at the same place, given as one of the graph."""

    def rule(graph: Graph, equation: Equation, *inputs: Value) -> Value:
        ranks = [len(atom.aval.shape) for atom in equation.invars]
        aligned, order = graph.align(inputs, ranks)
        return graph.transpose(compute(graph, equation, *aligned), order)

    return rule


def _steps(*steps: Any) -> Rule:
    """Return the rule of operations one after the other, some with numbers as further operands."""

    def compute(graph: Graph, equation: Equation, *xs: Value) -> Value:
        dtype = equation.invars[0].aval.dtype
        for kind, *numbers in steps:
            xs = (graph.op(kind, *xs, *[np.asarray(number, dtype) for number in numbers]),)
        return xs[0]

    return _elementwise(compute)


def _logical(kind: str) -> Rule:
    """Return the rule of an operation on booleans, or on the bits of numbers."""

    def compute(graph: Graph, equation: Equation, *xs: Value) -> Value:
        is_logical = equation.invars[0].aval.dtype == jnp.bool_
        return graph.op(kind if is_logical else f"Bitwise{kind}", *xs)

    return _elementwise(compute)


@_elementwise
def _power(graph: Graph, equation: Equation, x: Value) -> Value:
    exponent = np.asarray(equation.params["y"], equation.invars[0].aval.dtype)
    return graph.op("Mul", x, x) if exponent == 2 else graph.op("Pow", x, exponent)


def _bound(kind: str) -> Rule:
    """Return the rule of Max or Min; with a number it is what runtimes join to a convolution."""

    def compute(graph: Graph, equation: Equation, x: Value, y: Value) -> Value:
        if equation.outvars[0].aval.dtype == jnp.bool_:
            return graph.op("Or" if kind == "Max" else "And", x, y)
        if not isinstance(x, str):
            x, y = y, x
        is_float = jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)
        if isinstance(y, str) or y.size != 1 or not is_float or np.isnan(y).any():
            return graph.op(kind, x, y)
        number = np.reshape(y, [])
        # Without a second bound runtimes make infinity the largest finite number.
        if kind == "Min":
            return graph.op("Clip", x, np.full([], -np.inf, y.dtype), number)
        if number == 0:
            return graph.op("Relu", x)
        return graph.op("Clip", x, number, np.full([], np.inf, y.dtype))

    return _elementwise(compute)


@_elementwise
def _select(graph: Graph, equation: Equation, which: Value, *cases: Value) -> Value:
    which_dtype, dtype = equation.invars[0].aval.dtype, equation.invars[1].aval.dtype
    result = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        if which_dtype == jnp.bool_:
            result = graph.where(which, result, cases[number], dtype)
        else:
            is_this = graph.op("LessOrEqual", which, np.asarray(number, which_dtype))
            result = graph.where(is_this, cases[number], result, dtype)
    return result


@_elementwise
def _convert_numbers(graph: Graph, equation: Equation, x: Value) -> Value:
    source, dtype = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    if jnp.issubdtype(source, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        # XLA gives the nearest integer of the dtype; runtimes keep its lowest bits.
        low, high = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
        x = graph.op("Clip", x, *[np.asarray(n, storage_dtype(source)) for n in (low, high)])
        if jnp.iinfo(dtype).bits == 32:  # float32 rounds the highest up
            x = graph.op("Min", graph.cast(x, np.int64), np.int64(high))
    return graph.cast(x, dtype)


def _reduce_precision(graph: Graph, equation: Equation, x: Value) -> Value:
    bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    why = "ONNX has no such operation. Leave it out of the infer program."
    check_known("a rounding got bits of (exponent, mantissa) ", bits, _PRECISIONS, why, ExportError)
    return x


@_elementwise
def _round(graph: Graph, equation: Equation, x: Value) -> Value:
    if int(equation.params["rounding_method"]) == 1:
        return graph.op("Round", x)
    # Not of |x| + 0.5, which is rounded itself: 8388609.5 is 8388610.
    dtype, size = equation.invars[0].aval.dtype, graph.op("Abs", x)
    whole = graph.op("Floor", size)
    is_more = graph.op("GreaterOrEqual", graph.op("Sub", size, whole), np.asarray(0.5, dtype))
    size = graph.op("Add", whole, graph.cast(is_more, dtype))
    return graph.op("Mul", graph.op("Sign", x), size)


def _reduce(kind: str) -> Rule:
    """Return the rule of a reduction."""

    def rule(graph: Graph, equation: Equation, x: Value) -> Value:
        (source,) = equation.invars
        axes = list(equation.params["axes"])
        if not axes:
            return x
        if equation.primitive.name in ("reduce_and", "reduce_or"):
            why = "ONNX has no reduction of bits. Compute it of booleans."
            name = source.aval.dtype.name
            check_known("a reduction got bits of ", name, ["bool"], why, ExportError)
        # Runtimes reduce few dtypes.
        is_known = jnp.issubdtype(source.aval.dtype, jnp.floating) or source.aval.dtype in _WHOLE
        dtype = None if is_known else jnp.int64
        # Of a transposed value the same axes where they lie.
        x, order = graph.moved(x, len(source.aval.shape))
        kept = [axis for axis in range(len(order)) if order.index(axis) not in axes]
        x = graph.cast(x, dtype) if dtype else x
        y = graph.op(kind, x, sorted(order[axis] for axis in axes), keepdims=0)
        y = graph.cast(y, equation.outvars[0].aval.dtype) if dtype else y
        left = [order[axis] for axis in range(len(order)) if axis not in axes]
        return graph.transpose(y, [kept.index(axis) for axis in left])

    return rule


def _find_extreme(kind: str) -> Rule:
    def rule(graph: Graph, equation: Equation, x: Value) -> Value:
        (axis,), dtype = equation.params["axes"], equation.params["index_dtype"]
        if equation.invars[0].aval.dtype == jnp.bool_:
            x = graph.cast(x, jnp.int32)
        return graph.cast(graph.op(kind, x, axis=axis, keepdims=0), dtype)

    return rule


def _multiply_matrices(graph: Graph, equation: Equation, x: Value, w: Value) -> Value:
    (inner_x, inner_w), (batch_x, batch_w) = equation.params["dimension_numbers"]
    ranks = [len(atom.aval.shape) for atom in equation.invars]
    x, w = graph.widen(equation, x, w)
    free_x = [axis for axis in range(ranks[0]) if axis not in (*inner_x, *batch_x)]
    free_w = [axis for axis in range(ranks[1]) if axis not in (*inner_w, *batch_w)]
    if len(inner_x) == len(free_w) == 1 and (not batch_x or len(free_x) == 1):
        x = graph.transpose(x, [*batch_x, *free_x, *inner_x])
        return graph.op("MatMul", x, graph.transpose(w, [*batch_w, *inner_w, *free_w]))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names_x = [next(letters) for _ in range(ranks[0])]
    of_x = dict(zip((*inner_w, *batch_w), (*inner_x, *batch_x), strict=True))
    names_w = [names_x[of_x[a]] if a in of_x else next(letters) for a in range(ranks[1])]
    result = [names_x[a] for a in (*batch_x, *free_x)] + [names_w[a] for a in free_w]
    text = f"{''.join(names_x)},{''.join(names_w)}->{''.join(result)}"
    return graph.op("Einsum", x, w, equation=text)


def _broadcast(graph: Graph, equation: Equation, x: Value, *_: Value) -> Value:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    old, between = equation.invars[0].aval.shape, [1] * len(shape)
    for axis, size in zip(axes, old, strict=True):
        between[axis] = size
    if len(old) != len(shape):
        x = graph.reshape(x, between)
    return graph.expand(x, between, shape)


def _concatenate(graph: Graph, equation: Equation, *inputs: Value) -> Value:
    ranks = [len(atom.aval.shape) for atom in equation.invars]
    aligned, order = graph.align(inputs, ranks)
    axis = order[equation.params["dimension"]]
    return graph.transpose(graph.op("Concat", *aligned, axis=axis), order)


def _stack(graph: Graph, equation: Equation, *inputs: Value) -> Value:
    axis = equation.params["axis"]
    parts = [graph.op("Unsqueeze", value, [axis]) for value in inputs]
    return graph.op("Concat", *parts, axis=axis)


def _unstack(graph: Graph, equation: Equation, x: Value) -> list[Value]:
    axis = equation.params["axis"]
    return [graph.op("Gather", x, np.int32(n), axis=axis) for n in range(len(equation.outvars))]


def _split(graph: Graph, equation: Equation, x: Value) -> list[Value]:
    sizes, axis = list(equation.params["sizes"]), equation.params["axis"]
    return graph.ops("Split", x, sizes, num_outputs=len(sizes), axis=axis)


def _pad(graph: Graph, equation: Equation, x: Value, value: Value) -> Value:
    shape = list(equation.invars[0].aval.shape)
    config = equation.params["padding_config"]
    for axis, (_, _, between) in enumerate(config):
        if between:
            # A column of padding behind each element, of which the last is cut off.
            x = graph.reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            pads = [(0, between if place == axis + 1 else 0) for place in range(len(shape) + 1)]
            x = pad(graph, x, pads, value)
            shape[axis] = shape[axis] * (between + 1)
            x = graph.op("Slice", graph.reshape(x, shape), [0], [-between], [axis])
            shape[axis] = shape[axis] - between
    # Transposed values stay so, as the axes of images do between convolutions.
    (x,), order = graph.align([x], [len(shape)])
    pads = [config[order.index(axis)][:2] for axis in range(len(shape))]
    return graph.transpose(pad(graph, x, pads, value), order)


def _slice(graph: Graph, equation: Equation, x: Value) -> Value:
    params, shape = equation.params, equation.invars[0].aval.shape
    limits = zip(params["limit_indices"], shape, strict=True)
    starts = graph.sizes(params["start_indices"])
    ends = graph.sizes([_END if end == size else end for end, size in limits])
    steps = list(params["strides"] or [1] * len(shape))
    return graph.op("Slice", x, starts, ends, list(range(len(shape))), steps)


def _count(graph: Graph, equation: Equation) -> Value:
    params = equation.params
    shape, axis = params["shape"], params["dimension"]
    size = graph.op("Squeeze", graph.sizes([shape[axis]]), [0])
    numbers = graph.op("Range", np.int64(0), size, np.int64(1))
    between = [size if place == axis else 1 for place, size in enumerate(shape)]
    counted = graph.cast(graph.reshape(numbers, between), params["dtype"])
    return graph.expand(counted, between, shape)


def _add_up(graph: Graph, equation: Equation, x: Value) -> Value:
    axis = np.int32(equation.params["axis"])
    return graph.op("CumSum", x, axis, reverse=int(equation.params["reverse"]))


def _sort(graph: Graph, equation: Equation, *inputs: Value) -> list[Value]:
    axis = equation.params["dimension"]
    why = "ONNX sorts by one. Sort by the second first, then by the first."
    check_known("a sort got num_keys=", equation.params["num_keys"], [1], why, ExportError)
    size = graph.sizes([equation.invars[0].aval.shape[axis]])
    first, places = graph.ops("TopK", inputs[0], size, num_outputs=2, axis=axis, largest=0)
    rest = [graph.op("GatherElements", value, places, axis=axis) for value in inputs[1:]]
    return [first, *rest]


def _top_k(graph: Graph, equation: Equation, x: Value) -> list[Value]:
    axis = equation.params.get("axis", -1)
    values, places = graph.ops("TopK", x, [equation.params["k"]], num_outputs=2, axis=axis)
    return [values, graph.cast(places, equation.outvars[1].aval.dtype)]


def _read_size(graph: Graph, equation: Equation) -> Value:
    size = graph.op("Squeeze", graph.sizes([equation.params["dim"]]), [0])
    return graph.cast(size, equation.outvars[0].aval.dtype)


_SAME_NAMES = (
    "add sub mul div pow exp log tanh erf sqrt abs neg sign floor ceil sin cos tan asin "
    "acos atan sinh cosh asinh acosh atanh"
)
"""What is called the same in ONNX, but for the capital."""

_SAME = (
    *("copy", "copy_p", "stop_gradient", "optimization_barrier", "name"),
    *("sharding_constraint", "layout_constraint"),
)
"""What changes no number."""

RULES: dict[str, Rule] = {
    **{name: _steps([name.capitalize()]) for name in _SAME_NAMES.split()},
    **{name: _logical(name.capitalize()) for name in ("and", "or", "xor", "not")},
    "add_any": _steps(["Add"]),
    "max": _bound("Max"),
    "min": _bound("Min"),
    "eq": _steps(["Equal"]),
    "ne": _steps(["Equal"], ["Not"]),
    "lt": _steps(["Less"]),
    "gt": _steps(["Greater"]),
    "le": _steps(["LessOrEqual"]),
    "ge": _steps(["GreaterOrEqual"]),
    "logistic": _steps(["Sigmoid"]),
    "rsqrt": _steps(["Sqrt"], ["Reciprocal"]),
    "square": _steps(["Pow", 2]),
    "exp2": _steps(["Mul", np.log(2)], ["Exp"]),
    "log1p": _steps(["Add", 1], ["Log"]),
    "expm1": _steps(["Exp"], ["Sub", 1]),
    "erfc": _steps(["Erf"], ["Neg"], ["Add", 1]),
    "is_finite": _steps(["Abs"], ["Less", np.inf]),
    "rem": _elementwise(lambda graph, _, x, y: graph.op("Mod", x, y, fmod=1)),
    "clamp": _elementwise(
        lambda graph, _, low, x, high: graph.op("Min", high, graph.op("Max", low, x))
    ),
    "convert_element_type": _convert_numbers,
    "reduce_precision": _reduce_precision,
    "integer_pow": _power,
    "select_n": _select,
    "round": _round,
    **dict.fromkeys(_SAME, lambda graph, equation, *inputs: inputs),
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_prod": _reduce("ReduceProd"),
    "reduce_and": _reduce("ReduceMin"),
    "reduce_or": _reduce("ReduceMax"),
    "argmax": _find_extreme("ArgMax"),
    "argmin": _find_extreme("ArgMin"),
    "dot_general": _multiply_matrices,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda graph, equation, x, *_: graph.reshape(x, equation.outvars[0].aval.shape),
    "transpose": lambda graph, equation, x: graph.transpose(x, equation.params["permutation"]),
    "squeeze": lambda graph, equation, x: graph.op("Squeeze", x, equation.params["dimensions"]),
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "pad": _pad,
    "slice": _slice,
    "tile": lambda graph, equation, x: graph.op("Tile", x, graph.sizes(equation.params["reps"])),
    "rev": lambda graph, equation, x: flip(graph, x, equation.params["dimensions"]),
    "iota": _count,
    "cumsum": _add_up,
    "sort": _sort,
    "top_k": _top_k,
    "dim_as_value": _read_size,
}

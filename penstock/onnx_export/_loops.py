"""Loops and branches, whose bodies become graphs inside the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from onnx import helper

from penstock.onnx_export._graph import Equation, Graph, Value, describe


def _body(
    graph: Graph, inputs: Sequence[tuple[str, Any]], run: Callable[[], Sequence[tuple[Value, Any]]]
) -> Any:
    """Return a graph of what `run` adds; it sees all that was made outside."""
    outside, graph.nodes = graph.nodes, []
    outputs = []
    for value, aval in run():
        # A result must be made inside, by a node of its own.
        outputs.append((graph.op("Identity", value), aval))
    nodes, graph.nodes = graph.nodes, outside
    takes, gives = ([describe(n, a.shape, a.dtype) for n, a in side] for side in (inputs, outputs))
    return helper.make_graph(nodes, graph.new_name("body"), takes, gives)


def _avals(atoms: Sequence[Any]) -> list[Any]:
    return [atom.aval for atom in atoms]


def _count_scanned(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """Return how many values a scan takes, or gives, a row of at each step."""
    pairs = zip(_avals(outside), _avals(inside), strict=True)
    return sum(whole.ndim > row.ndim for whole, row in pairs)


def _scan(graph: Graph, equation: Equation, *inputs: Value) -> list[Value]:
    params, closed = equation.params, equation.params["jaxpr"]
    # From the shapes: how an equation holds these numbers differs between versions of JAX.
    num_rows = _count_scanned(equation.invars, closed.jaxpr.invars)
    num_stacked = _count_scanned(equation.outvars, closed.jaxpr.outvars)
    num_outputs = len(equation.outvars)
    num_consts = len(inputs) - num_rows - (num_outputs - num_stacked)
    consts, moving = inputs[:num_consts], list(inputs[num_consts:])
    if params["length"] == 0:  # ONNX Runtime takes no loop without a row
        stacked = _avals(equation.outvars)[num_outputs - num_stacked :]
        rows = [np.zeros([1] * aval.ndim, aval.dtype) for aval in stacked]
        pairs = zip(rows, stacked, strict=True)
        empty = [graph.expand(row, row.shape, aval.shape) for row, aval in pairs]
        return [*moving[: num_outputs - num_stacked], *empty]
    avals = _avals(closed.jaxpr.invars)[num_consts:]
    if not num_rows:  # ONNX counts steps by rows
        num_rows = 1
        moving.append(np.zeros([params["length"]], np.float32))
        avals.append(np.zeros([], np.float32))
    names = [graph.new_name("scanned") for _ in moving]

    def run() -> list[tuple[Value, Any]]:
        takes = names[: len(closed.jaxpr.invars) - num_consts]
        results = graph.walk(closed, [*consts, *takes])
        return list(zip(results, _avals(closed.jaxpr.outvars), strict=True))

    direction = int(params["reverse"])
    return graph.ops(
        "Scan",
        *moving,
        num_outputs=num_outputs,
        body=_body(graph, list(zip(names, avals, strict=True)), run),
        num_scan_inputs=num_rows,
        scan_input_directions=[direction] * num_rows,
        **({"scan_output_directions": [1] * num_stacked} if direction and num_stacked else {}),
    )


def _accumulate(
    combine: Callable[..., Any], begin: Callable[[Any], Any] = lambda row: row
) -> Callable[..., Value]:
    """Return the rule of a running maximum, minimum or product along an axis: that of a scan."""

    def rule(graph: Graph, equation: Equation, x: Value) -> Value:
        axis, reverse = equation.params["axis"], equation.params["reverse"]
        aval = equation.invars[0].aval

        def accumulate(x: jax.Array) -> jax.Array:
            first = begin(jax.lax.index_in_dim(x, -1 if reverse else 0, axis, keepdims=False))
            rows = jnp.moveaxis(x, axis, 0)
            totals = jax.lax.scan(
                lambda y, row: (combine(y, row),) * 2, first, rows, reverse=reverse
            )
            return jnp.moveaxis(totals[1], 0, axis)

        trace = jax.make_jaxpr(accumulate)(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        return graph.walk(trace, [x])[0]

    return rule


def _while(graph: Graph, equation: Equation, *inputs: Value) -> list[Value]:
    params = equation.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    ends = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, body_consts, carried = inputs[: ends[0]], inputs[slice(*ends)], inputs[ends[1] :]
    avals = _avals(equation.outvars)
    is_going = np.zeros([], bool)
    # Under jax.vmap each example has a condition of its own: the loop ends with the last one's.
    shape = _avals(cond.jaxpr.outvars)[0].shape

    def test(values: Sequence[Value]) -> Value:
        return graph.walk(cond, [*cond_consts, *values])[0]

    def is_any(going: Value) -> Value:
        if not shape:
            return going
        return graph.cast(graph.op("ReduceMax", graph.cast(going, np.int32), keepdims=0), np.bool_)

    def keep(going: Value, new: Value, old: Value, aval: Any) -> Value:
        going = graph.reshape(going, [*shape, *[1] * (aval.ndim - len(shape))])
        return graph.where(going, new, old, aval.dtype)

    names = [graph.new_name("looped") for _ in range(len(avals) + 2)]

    def run() -> list[tuple[Value, Any]]:
        results = graph.walk(body, [*body_consts, *names[2:]])
        if shape:
            going = test(names[2:])
            results = [keep(going, *args) for args in zip(results, names[2:], avals, strict=True)]
        return [(is_any(test(results)), is_going), *zip(results, avals, strict=True)]

    described = list(zip(names, [np.zeros([], np.int64), is_going, *avals], strict=True))
    inner = _body(graph, described, run)
    first = is_any(test(carried))
    return graph.ops("Loop", None, first, *carried, num_outputs=len(avals), body=inner)


def _cond(graph: Graph, equation: Equation, index: Value, *inputs: Value) -> Sequence[Value]:
    branches = equation.params["branches"]
    avals = _avals(equation.outvars)
    if not isinstance(index, str):
        return graph.walk(branches[int(np.clip(index, 0, len(branches) - 1))], inputs)

    def choose(first: int) -> Sequence[Value]:
        if first == len(branches) - 1:
            return graph.walk(branches[first], inputs)

        def take() -> list[tuple[Value, Any]]:
            return list(zip(graph.walk(branches[first], inputs), avals, strict=True))

        rest = _body(graph, [], lambda: list(zip(choose(first + 1), avals, strict=True)))
        is_this = graph.op("LessOrEqual", graph.cast(index, np.int32), np.int32(first))
        own = _body(graph, [], take)
        return graph.ops("If", is_this, num_outputs=len(avals), then_branch=own, else_branch=rest)

    return choose(0)


def _choose_platform(graph: Graph, equation: Equation) -> Value:
    places = equation.params["platforms"]
    matches = [n for n, names in enumerate(places) if names is None or "cpu" in names]
    return np.int32(matches[0])


RULES = {
    "scan": _scan,
    "cummax": _accumulate(jnp.maximum),
    "cummin": _accumulate(jnp.minimum),
    "cumprod": _accumulate(jnp.multiply, jnp.ones_like),
    "while": _while,
    "cond": _cond,
    "platform_index": _choose_platform,
}

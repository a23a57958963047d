"""From a trace of JAX to nodes, equation by equation; what no input changes is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import source_info_util
from jax.extend.core import Var

from penstock._errors import ExportError
from penstock.onnx_export import _lookups, _loops, _rules, _windows
from penstock.onnx_export._graph import Equation, Graph, Value

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_RULES = {**_rules.RULES, **_windows.RULES, **_loops.RULES, **_lookups.RULES}
_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
    *("remat", "remat2", "checkpoint", "custom_vjp_call_jaxpr"),
}
_NEVER_CONSTANT = {"dim_as_value", "platform_index", "cond"}
_LARGE = 2**16
"""Elements. What repeats fewer into more is repeated by the runtime, and not in the file."""


def walk(graph: Graph, trace: Any, inputs: Sequence[Value]) -> list[Value]:
    """Add the nodes of a jaxpr, closed or not; return its results."""
    jaxpr = getattr(trace, "jaxpr", trace)
    consts = getattr(trace, "consts", ())
    values: dict[Var, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Value:
        return values[atom] if isinstance(atom, Var) else np.asarray(atom.val, atom.aval.dtype)

    for equation in jaxpr.eqns:
        results = _convert(graph, equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _convert(graph: Graph, equation: Equation, inputs: list[Value]) -> Sequence[Value]:
    name, params = equation.primitive.name, equation.params
    graph.equations.append(equation)
    if name in _CALLS:
        inner = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
        result = walk(graph, inner, inputs)
    elif _is_constant(equation, inputs):
        # Kept as JAX's arrays: keys of its random numbers are no numpy arrays.
        result = equation.primitive.bind(*inputs, **params)
    elif name in _RULES:
        result = _RULES[name](graph, equation, *inputs)
    else:
        raise ExportError(
            f"the export to ONNX got the operation {name!r} of {_find_line(graph)}, expected one "
            "that has a rule. Some have no counterpart in ONNX, such as random numbers and Fourier "
            "transforms. Write it with others, or leave it out of the infer program."
        )
    graph.equations.pop()
    return result if isinstance(result, (list, tuple)) else [result]


def add_line(error: Exception, graph: Graph) -> None:
    """Say in an error which operation it was about, and the user's line that made it."""
    line = _find_line(graph)
    if graph.equations and line not in str(error):
        error.add_note(f"In the operation {graph.equations[-1].primitive.name!r} of {line}.")


def _is_constant(equation: Equation, inputs: list[Value]) -> bool:
    """Return whether the results are the same whatever the inputs of the model, and not large."""
    name = equation.primitive.name
    if any(isinstance(value, str) for value in inputs) or name in _NEVER_CONSTANT:
        return False
    sizes = [size for var in equation.outvars for size in var.aval.shape]
    if not all(isinstance(size, int) for size in sizes):
        return False
    return name != "broadcast_in_dim" or int(np.prod(sizes)) <= max(_LARGE, inputs[0].size)


def _find_line(graph: Graph) -> str:
    lines = []
    for equation in graph.equations:
        lines += source_info_util.summarize(equation.source_info, num_frames=100).splitlines()
    excluded = (_OURS, "unknown", f"{os.sep}flax{os.sep}")
    lines = [line.strip() for line in lines if not any(part in line for part in excluded)]
    return next(filter(None, reversed(lines)), "an unknown line")

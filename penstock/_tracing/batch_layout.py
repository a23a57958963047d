"""How a program's batch is laid out on the devices: split, but for what XLA splits badly.

XLA's partitioner (of JAX 0.10.2) computes a few operations over a split batch axis wrongly, or not
at all. A program that has one is computed whole on every device: right, and not faster than on one.
tests/battery/partitioner.py has a program for each of them.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn

from penstock._mesh import Layout

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

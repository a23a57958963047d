"""One equation of two traces, and what most rules about equations share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
from jax.extend.core import Jaxpr, Literal, Var

from penstock._tracing.kinds import Kind, Reason, combine, make_other

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of one array in both traces."""


class Operation(NamedTuple):
    """One equation of both traces.

    Attributes:
      params, other_params: its parameters in each trace.
      kinds: of its operands.
      operands, results: their shapes.
      sizes: the batch sizes of the traces.
      reason: how errors name it.
    """

    name: str
    params: Mapping[str, Any]
    other_params: Mapping[str, Any]
    kinds: list[Kind]
    operands: list[Shapes]
    results: list[Shapes]
    sizes: tuple[int, int]
    reason: Reason

    def make_other(self) -> list[Kind]:
        """Return results that depend on how the batch is split."""
        return [make_other(self.kinds, self.reason)] * len(self.results)

    def combine(self) -> list[Kind]:
        """Return results of an operation that works element by element."""
        return [combine(self.name, self.kinds, self.reason)] * len(self.results)

    def note_padding(self, results: list[Kind]) -> list[Kind]:
        """Return results with a note of the padding, where rows met before their weights."""
        # Once met by the weights, what padding adds is 0.
        rows = [k for k in self.kinds if k.form in ("rows", "index")]
        if all(k.is_weighted for k in rows):
            return results
        return [k.with_padding(self.reason) for k in results]


def get_aval(variable: Var | Literal) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of a variable of a trace, whose declared type in JAX has neither."""
    # A cast, as JAX declares an abstract value without shape or dtype.
    return cast(jax.ShapeDtypeStruct, variable.aval)


def get_body(parameter: Any) -> Jaxpr:
    """Return a trace without its constants; any other parameter of an equation as it is."""
    return getattr(parameter, "jaxpr", parameter)


def batch_axes(shapes: Shapes) -> tuple[int, ...]:
    """Return the axes whose size depends on the batch size."""
    return tuple(n for n, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)


def mix(operation: Operation) -> list[Kind]:
    """Follow an operation between examples."""
    if all(k.form == "same" and not k.degree for k in operation.kinds):
        # Of constant rows it makes rows that differ by their number on this device.
        kinds = operation.combine()
        axes = [batch_axes(shapes) for shapes in operation.results]
        is_numbered = [bool(each) and not kinds[0].is_gathered for each in axes]
        return [
            Kind("index") if numbered else k for k, numbered in zip(kinds, is_numbered, strict=True)
        ]
    return operation.note_padding(operation.make_other())

"""The convolutions and matrix products of a trace, and their multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import DictKey, KeyPath, tree_leaves_with_path

from penstock._parameter_names import spell

Atom = Var | Literal

# Operations between a kernel and the product that uses it.
_TRANSPARENT = (
    "convert_element_type",
    "reshape",
    "transpose",
    "squeeze",
    "rev",
    "broadcast_in_dim",
)


class Product(NamedTuple):
    """A convolution or matrix product: the path of its kernel, if it has one, and its output."""

    path: str | None
    shape: tuple[int, ...]
    num_macs: int


def find_products(traced: jax.stages.Traced) -> list[Product]:
    """Return the products of a traced program that its outputs need."""
    # Auxiliary heads are in every program; the compiler drops what no output needs, and so do we.
    jaxpr, _ = dce_jaxpr(traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.out_avals), instantiate=True)
    arguments = tree_leaves_with_path(
        traced.args_info, is_leaf=lambda leaf: hasattr(leaf, "donated")
    )
    return _walk(jaxpr, [_find_parameter(path) for path, _ in arguments])[0]


def _find_parameter(path: KeyPath) -> str | None:
    """Return our path of a parameter among a program's arguments, None for other arguments."""
    collection, *keys = [entry.key for entry in path if isinstance(entry, DictKey)] or [None]
    return spell(keys) if collection == "params" else None


def _walk(jaxpr: Jaxpr, origins: Sequence[str | None]) -> tuple[list[Product], list[str | None]]:
    """Return the products in a trace, nested ones too, and which parameter each output is."""
    paths: dict[Atom, str | None] = dict(zip(jaxpr.invars, origins, strict=False))
    products: list[Product] = []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inputs = _find_origins(equation.invars, paths)
        if name in ("conv_general_dilated", "dot_general"):
            shape = _get_shape(equation.outvars[0])
            kernel = inputs[1] or inputs[0]
            products.append(Product(kernel, shape[1:], _count_macs(name, equation)))
        elif name in _TRANSPARENT:
            paths[equation.outvars[0]] = inputs[0]
        else:
            inner, outputs = _walk_nested(name, equation, inputs)
            products += inner
            paths.update(zip(equation.outvars, outputs, strict=False))
    return products, _find_origins(jaxpr.outvars, paths)


def _find_origins(atoms: Sequence[Atom], paths: dict[Atom, str | None]) -> list[str | None]:
    return [None if isinstance(atom, Literal) else paths.get(atom) for atom in atoms]


def _walk_nested(
    name: str, equation: JaxprEqn, inputs: list[str | None]
) -> tuple[list[Product], list[str | None]]:
    # A branch or a body takes the last inputs; the number of the branch comes before them.
    traces = [
        _walk(inner, inputs[len(inputs) - len(inner.invars) :])
        for inner in jaxprs_in_params(equation.params)
    ]
    if name == "cond":
        return max(traces, key=lambda trace: sum(product.num_macs for product in trace[0]))
    times = equation.params["length"] if name == "scan" else 1
    products = [p._replace(num_macs=p.num_macs * times) for inner, _ in traces for p in inner]
    return products, traces[0][1] if len(traces) == 1 and times == 1 else []


def _count_macs(name: str, equation: JaxprEqn) -> int:
    """Return the multiply-adds of a product on all devices together."""
    left, right = map(_get_shape, equation.invars)
    # In a `shard_map` shapes are those of one device's part.
    mesh = equation.ctx.cur_abstract_mesh
    num_parts = math.prod([mesh.shape[axis] for axis in mesh.manual_axes])
    outputs = num_parts * math.prod(_get_shape(equation.outvars[0]))
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return outputs * math.prod(left[axis] for axis in contracted)
    num_filters = right[equation.params["dimension_numbers"].rhs_spec[0]]
    # A transposed convolution meets a pixel of the input only once in so many steps.
    spread = math.prod(equation.params["lhs_dilation"])
    # Each output sums over one filter: height, width and the channels of its group.
    return outputs * math.prod(right) // (num_filters * spread)


def _get_shape(atom: Atom) -> tuple[int, ...]:
    return atom.aval.shape  # pyright: ignore[reportAttributeAccessIssue]: all of ours are arrays

"""What a network costs: its layers, parameters and multiply-adds, found without computing any."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import DictKey, tree_leaves_with_path

from penstock import layers
from penstock.models._facts import FACTS
from penstock.models._registry import Model
from penstock.program_builder import ProgramBuilder

# What passes a kernel on to the product it is for.
_PASSING = ("convert_element_type", "reshape", "transpose", "squeeze", "rev", "broadcast_in_dim")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The size of one network.

    Arguments:
      num_classes: that it was counted at.
      num_params: numbers that are trained, those of auxiliary heads too.
      num_statistics: numbers that batch norm keeps beside them.
      num_tensors: arrays that are trained.
      num_macs: multiplications of convolutions and dense layers, each with an addition, for one
        image in infer mode: without auxiliary heads.
    """

    num_classes: int
    num_params: int
    num_statistics: int
    num_tensors: int
    num_macs: int

    @property
    def gmacs(self) -> float:
        """Billions of multiply-adds for one image."""
        return self.num_macs / 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer of a network.

    Arguments:
      shapes: of its parameters and statistics, by name.
      output_shape: without the batch axis; None where the layer multiplies by no kernel, or not in
        infer mode.
    """

    path: str
    shapes: dict[str, tuple[int, ...]]
    output_shape: tuple[int, ...] | None
    num_params: int
    num_statistics: int
    num_macs: int


class Product(NamedTuple):
    """A convolution or matrix product: the path of its kernel, if it has one, and its output."""

    path: str | None
    shape: tuple[int, ...]
    num_macs: int


def counted_classes(model: Model) -> int:
    """Return at how many classes a network is counted: 1000 for those of ImageNet.

    Papers count without the background class that some published weights have as the 1001st.
    """
    return 1000 if model.num_classes == 1001 else model.num_classes


def report_of(model: Model) -> Report:
    """Return the size of a network; of the library's own it is known and takes no time."""
    facts = FACTS.get(model.name)
    return describe(model)[0] if facts is None else Report(**dict(zip(_FIELDS, facts, strict=True)))


def describe(
    model: Model, *, num_classes: int | None = None, image_size: int | None = None
) -> tuple[Report, list[LayerRow]]:
    """Return the size of a network and its layers in the order they are made.

    Arguments:
      num_classes: `counted_classes` of the network by default.
      image_size: height and width in pixels, the network's own by default.
    """
    classes = counted_classes(model) if num_classes is None else num_classes
    size = model.default_image_size if image_size is None else image_size

    def infer_program() -> jax.Array:
        return model(layers.data("image", [size, size, model.num_channels]), classes)[0]

    builder = ProgramBuilder(infer_func=infer_program, place=jax.devices("cpu")[:1])
    table = builder.parameter_table()
    products = products_of(builder.inspect("infer", batch_size=1).traced)
    trained = [row for row in table if row.is_trainable]
    report = Report(
        num_classes=classes,
        num_params=sum(row.size for row in trained),
        num_statistics=sum(row.size for row in table if row.collection != "params"),
        num_tensors=len(trained),
        num_macs=sum(product.num_macs for product in products),
    )
    return report, _layer_rows(table, products)


def products_of(traced: Any) -> list[Product]:
    """Return the products of a traced infer program that its outputs need."""
    jaxpr, _ = dce_jaxpr(traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.out_avals), instantiate=True)
    return _walk(jaxpr, [_name_of(path) for path, _ in _arguments(traced)])[0]


def _arguments(traced: Any) -> list[tuple[Any, Any]]:
    return tree_leaves_with_path(traced.args_info, is_leaf=lambda each: hasattr(each, "donated"))


def _name_of(path: Sequence[Any]) -> str | None:
    """Return the path of a parameter among the arguments of a program, None for the others."""
    collection, *keys = [entry.key for entry in path if isinstance(entry, DictKey)] or [None]
    return "/".join(keys) if collection == "params" else None


def _walk(jaxpr: Any, origins: Sequence[str | None]) -> tuple[list[Product], list[str | None]]:
    """Return the products in a trace, nested ones too, and of which parameter each output is.

    Arguments:
      origins: of which parameter each input is, None where it is of none.
    """
    known = dict(zip(jaxpr.invars, origins, strict=True))
    products: list[Product] = []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inputs = _origins(equation.invars, known)
        if name in ("conv_general_dilated", "dot_general"):
            shape = equation.outvars[0].aval.shape
            kernel = inputs[1] or inputs[0]
            products.append(Product(kernel, shape[1:], _num_macs(name, equation)))
        elif name in _PASSING:
            known[equation.outvars[0]] = inputs[0]
        else:
            inner, outputs = _nested(name, equation, inputs)
            products += inner
            known.update(zip(equation.outvars, outputs, strict=False))
    return products, _origins(jaxpr.outvars, known)


def _origins(variables: Sequence[Any], known: dict[Any, str | None]) -> list[str | None]:
    return [None if hasattr(v, "val") else known.get(v) for v in variables]  # literals have a val


def _nested(
    name: str, equation: Any, inputs: list[str | None]
) -> tuple[list[Product], list[str | None]]:
    """Return what `_walk` finds in the traces that an equation has among its parameters."""
    # What a branch or a body takes is what comes last; the branch's number comes before it.
    each = [
        _walk(inner, inputs[len(inputs) - len(inner.invars) :])
        for inner in jaxprs_in_params(equation.params)
    ]
    if name == "cond":  # one of its branches runs, such as the one for the platform
        return max(each, key=lambda one: sum(product.num_macs for product in one[0]))
    times = equation.params["length"] if name == "scan" else 1
    products = [p._replace(num_macs=p.num_macs * times) for found, _ in each for p in found]
    return products, each[0][1] if len(each) == 1 and times == 1 else []


def _num_macs(name: str, equation: Any) -> int:
    left, right = (variable.aval.shape for variable in equation.invars)
    outputs = math.prod(equation.outvars[0].aval.shape)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return outputs * math.prod(left[axis] for axis in contracted)
    num_filters = right[equation.params["dimension_numbers"].rhs_spec[0]]
    # A transposed convolution meets a pixel of the input in one of so many steps.
    spread = math.prod(equation.params["lhs_dilation"])
    return outputs * math.prod(right) // (num_filters * spread)


def _layer_rows(table: Sequence[Any], products: Sequence[Product]) -> list[LayerRow]:
    """Return a row for each layer, and one for the products without parameters, if any."""
    grouped: dict[str, list[Any]] = {}
    for row in table:
        grouped.setdefault(_layer_of(row.name), []).append(row)
    made: dict[str, list[Product]] = {}
    for product in products:
        made.setdefault(_layer_of(product.path or ""), []).append(product)
    rows = [
        LayerRow(
            path=path,
            shapes={each.name.rpartition("/")[2]: each.shape for each in entries},
            output_shape=made[path][-1].shape if path in made else None,
            num_params=sum(each.size for each in entries if each.is_trainable),
            num_statistics=sum(each.size for each in entries if each.collection != "params"),
            num_macs=sum(product.num_macs for product in made.get(path, [])),
        )
        for path, entries in grouped.items()
    ]
    rest = sum(product.num_macs for product in made.get("", []))
    nothing = LayerRow(
        path="(without parameters)",
        shapes={},
        output_shape=None,
        num_params=0,
        num_statistics=0,
        num_macs=rest,
    )
    return [*rows, nothing] if rest else rows


def _layer_of(path: str) -> str:
    """Return the layer of a parameter; one that belongs to none stands for itself."""
    return path.rpartition("/")[0] or path


_FIELDS = [field.name for field in dataclasses.fields(Report)]

"""What a network costs: its layers, parameters and multiply-adds, read off its trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import DictKey, KeyPath, tree_leaves_with_path

from penstock import layers
from penstock._parameter_names import spell
from penstock.models._facts import FACTS
from penstock.models._registry import Model
from penstock.program_builder import ParameterRow, ProgramBuilder

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The size of one network.

    Arguments:
      num_classes: the width of the last layer that the counts are for.
      num_params: number of trainable parameters, including auxiliary heads.
      num_statistics: number of values in batch norm's running statistics.
      num_tensors: number of trainable arrays.
      num_macs: multiply-adds of convolutions and dense layers for one image in infer mode,
        without auxiliary heads.
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
      output_shape: without the batch axis; None where the layer has no product, or none in infer
        mode.
    """

    path: str
    num_macs: int
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    output_shape: tuple[int, ...] | None = None
    num_params: int = 0
    num_statistics: int = 0


class Product(NamedTuple):
    """A convolution or matrix product: the path of its kernel, if it has one, and its output."""

    path: str | None
    shape: tuple[int, ...]
    num_macs: int


def get_counted_classes(model: Model) -> int:
    """Return the number of classes that a network is counted with: 1000 for those of ImageNet."""
    # Papers count without the background class that TF-Slim's weights have as the 1001st.
    return 1000 if model.num_classes == 1001 else model.num_classes


def get_report(model: Model) -> Report:
    """Return the size of a network; those of the library are precomputed."""
    facts = FACTS.get(model.name)
    return describe(model)[0] if facts is None else Report(**dict(zip(_FIELDS, facts, strict=True)))


def describe(
    model: Model, *, num_classes: int | None = None, image_size: int | None = None
) -> tuple[Report, list[LayerRow]]:
    """Trace a network; return its size, and its layers in the order in which they are made.

    Arguments:
      num_classes: `get_counted_classes` of the network by default.
      image_size: height and width in pixels, the network's own by default.
    """
    classes = get_counted_classes(model) if num_classes is None else num_classes
    size = model.default_image_size if image_size is None else image_size

    def infer_program() -> jax.Array:
        return model(layers.data("image", [size, size, model.num_channels]), classes)[0]

    # On one CPU device whatever else there is: it is traced, never run.
    builder = ProgramBuilder(infer_func=infer_program, place=jax.devices("cpu")[:1])
    table = builder.parameter_table()
    # Where every product is a convolution or a dense layer that the network's authors counted.
    inspection = builder.inspect("infer", batch_size=1, as_on_accelerators=True)
    products = find_products(inspection.traced)
    trained = [row for row in table if row.is_trainable]
    report = Report(
        num_classes=classes,
        num_params=sum(row.size for row in trained),
        num_statistics=sum(row.size for row in table if row.collection != "params"),
        num_tensors=len(trained),
        num_macs=sum(product.num_macs for product in products),
    )
    return report, _make_layer_rows(table, products)


def find_products(traced: jax.stages.Traced) -> list[Product]:
    """Return the products of a traced infer program that its outputs need."""
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
    """Return the products in a trace, nested ones too, and which parameter each output is.

    Arguments:
      origins: the path of the parameter that each input is, None where it is none.
    """
    paths: dict[Atom, str | None] = dict(zip(jaxpr.invars, origins, strict=True))
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
    # Literals cannot be hashed.
    return [None if isinstance(atom, Literal) else paths.get(atom) for atom in atoms]


def _walk_nested(
    name: str, equation: JaxprEqn, inputs: list[str | None]
) -> tuple[list[Product], list[str | None]]:
    # A branch or a body takes the last inputs; the number of the branch comes before them.
    traces = [
        _walk(inner, inputs[len(inputs) - len(inner.invars) :])
        for inner in jaxprs_in_params(equation.params)
    ]
    # One of the branches runs, such as the one for the platform.
    if name == "cond":
        return max(traces, key=lambda one: sum(product.num_macs for product in one[0]))
    times = equation.params["length"] if name == "scan" else 1
    products = [p._replace(num_macs=p.num_macs * times) for inner, _ in traces for p in inner]
    return products, traces[0][1] if len(traces) == 1 and times == 1 else []


def _count_macs(name: str, equation: JaxprEqn) -> int:
    left, right = map(_get_shape, equation.invars)
    outputs = math.prod(_get_shape(equation.outvars[0]))
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


def _make_layer_rows(table: Sequence[ParameterRow], products: Sequence[Product]) -> list[LayerRow]:
    """Return a row for each layer, and one for the products without parameters, if any."""
    grouped: dict[str, list[ParameterRow]] = {}
    for row in table:
        grouped.setdefault(_cut_leaf(row.name), []).append(row)
    made: dict[str, list[Product]] = {}
    for product in products:
        made.setdefault(_cut_leaf(product.path or ""), []).append(product)
    rows = [
        LayerRow(
            path=path,
            shapes={entry.name.rpartition("/")[2]: entry.shape for entry in entries},
            output_shape=made[path][-1].shape if path in made else None,
            num_params=sum(entry.size for entry in entries if entry.is_trainable),
            num_statistics=sum(entry.size for entry in entries if entry.collection != "params"),
            num_macs=sum(product.num_macs for product in made.get(path, [])),
        )
        for path, entries in grouped.items()
    ]
    # Products without a kernel, such as those of attention.
    rest = sum(product.num_macs for product in made.get("", []))
    return [*rows, LayerRow(path="(without parameters)", num_macs=rest)] if rest else rows


def _cut_leaf(path: str) -> str:
    """Return the layer of a parameter; a parameter without a layer is one itself."""
    return path.rpartition("/")[0] or path


_FIELDS = [field.name for field in dataclasses.fields(Report)]

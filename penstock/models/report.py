"""What a network costs: its layers, parameters and multiply-adds, read off its trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax

from penstock import layers
from penstock.models._facts import FACTS
from penstock.models._registry import Model
from penstock.program_builder import ParameterRow, ProgramBuilder
from penstock.program_builder.products import Product, find_products

Devices = Sequence[jax.Device] | None


@dataclasses.dataclass(frozen=True)
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


def build_forward(
    model: Model, num_classes: int, image_size: int | None = None, *, place: Devices = None
) -> ProgramBuilder:
    """Build the network's forward pass, from images to logits."""
    size = model.default_image_size if image_size is None else image_size

    def infer_program() -> jax.Array:
        return model(layers.data("image", [size, size, model.num_channels]), num_classes)[0]

    return ProgramBuilder(infer_func=infer_program, place=place)


def get_counted_classes(model: Model) -> int:
    """Return the number of classes that a network is counted with: 1000 for those of ImageNet."""
    # Papers count without the background class that TF-Slim's weights have as the 1001st.
    return 1000 if model.num_classes == 1001 else model.num_classes


def get_report(model: Model) -> Report:
    """Return the size of a network; those of the library are precomputed."""
    facts = FACTS.get(model.name)
    return describe(model)[0] if facts is None else Report(*facts)


def describe(
    model: Model, *, num_classes: int | None = None, image_size: int | None = None
) -> tuple[Report, list[LayerRow]]:
    """Trace a network; return its size, and its layers in the order in which they are made.

    Arguments:
      num_classes: `get_counted_classes` of the network by default.
      image_size: height and width in pixels, the network's own by default.
    """
    classes = get_counted_classes(model) if num_classes is None else num_classes
    # On one CPU device whatever else there is: it is traced, never run.
    builder = build_forward(model, classes, image_size, place=jax.devices("cpu")[:1])
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
    num_macs = sum(product.num_macs for product in made.get("", []))
    return [*rows, LayerRow(path="(without parameters)", num_macs=num_macs)] if num_macs else rows


def _cut_leaf(path: str) -> str:
    """Return the layer of a parameter; a parameter without a layer is one itself."""
    return path.rpartition("/")[0] or path

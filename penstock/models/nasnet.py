"""NASNet-A for CIFAR and ImageNet: Zoph et al. 2018, TF-Slim's nasnet.py."""

from __future__ import annotations

import dataclasses
import functools

import jax

from penstock.models._nasnet_cells import Cell, Cells, decays_all_kernels
from penstock.models._registry import EndPoints, Model
from penstock.models._settings import Settings

_SEPARABLE_3, _SEPARABLE_5, _SEPARABLE_7 = (("separable", size) for size in (3, 5, 7))
_AVERAGE, _MAXIMUM, _IDENTITY = ("avg_pool", 3), ("max_pool", 3), ("identity", 1)

NORMAL = Cell(
    sums=(
        ((_SEPARABLE_5, 0), (_SEPARABLE_3, 1)),
        ((_SEPARABLE_5, 1), (_SEPARABLE_3, 1)),
        ((_AVERAGE, 0), (_IDENTITY, 1)),
        ((_AVERAGE, 1), (_AVERAGE, 1)),
        ((_SEPARABLE_3, 0), (_IDENTITY, 0)),
    ),
    outputs=(1, 2, 3, 4, 5, 6),
)
REDUCTION = Cell(
    sums=(
        ((_SEPARABLE_5, 0), (_SEPARABLE_7, 1)),
        ((_MAXIMUM, 0), (_SEPARABLE_7, 1)),
        ((_AVERAGE, 0), (_SEPARABLE_5, 1)),
        ((_IDENTITY, 3), (_AVERAGE, 2)),
        ((_SEPARABLE_3, 2), (_MAXIMUM, 0)),
    ),
    outputs=(3, 4, 5, 6),
)


def nasnet(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    num_cells: int,
    num_filters: int,
    num_stem_filters: int,
    is_for_imagenet: bool = True,
    reduction_skips_a_cell: bool = False,
    has_zero_borders: bool = False,
) -> tuple[jax.Array, EndPoints]:
    """Build NASNet-A: three stacks of normal cells, with a reduction cell before two of them.

    Arguments:
      num_cells: normal cells in all.
      num_filters: of the first stack; each reduction doubles them.
      is_for_imagenet: begin with a stride of 8, in place of 1.
      reduction_skips_a_cell: the first normal cell after a reduction sees, beside it, what the
        reduction saw beside its own input, in place of that input.
      has_zero_borders: reduction cells count a frame of zeros in what they pool.
    """
    cells = Cells(settings, num_cells + (4 if is_for_imagenet else 2), has_zero_borders)
    if is_for_imagenet:
        outputs = cells.imagenet_stem(images, REDUCTION, num_filters, num_stem_filters)
    else:
        outputs = [cells.conv(images, num_stem_filters, 3, ("l1_stem_3x3", "l1_stem_bn"))]
    points: EndPoints = {"Stem": outputs[-1]}
    reductions = (num_cells // 3, 2 * num_cells // 3)
    for index in range(num_cells):
        reach = 2
        if index in reductions:
            num_filters *= 2
            count = reductions.index(index)
            name = f"reduction_cell_{count}"
            net = cells.cell(REDUCTION, outputs, name=name, num_filters=num_filters, stride=2)
            outputs.append(net)
            points[f"Reduction_Cell_{count}"] = net
            reach = 3 if reduction_skips_a_cell else 2
        name = f"cell_{index}"
        net = cells.cell(NORMAL, outputs, name=name, num_filters=num_filters, reach=reach)
        outputs.append(net)
        points[f"Cell_{index}"] = net
        if index == reductions[1] - 1 and num_classes is not None:
            points["AuxLogits"] = cells.auxiliary_head(net, num_classes, name=f"aux_{index}")
    return cells.final_layer(outputs[-1], num_classes, points)


_IMAGENET = Settings(
    batch_norm_decay=0.9997,
    batch_norm_epsilon=1e-3,
    unbiased_running_variance=True,
    dropout=0.5,
    drop_path=0.0,
    drop_path_steps=250_000,
    weight_decay=4e-5,
)
_CIFAR = Settings(
    batch_norm_decay=0.9,
    batch_norm_epsilon=1e-5,
    unbiased_running_variance=True,
    dropout=0.0,
    drop_path=0.4,
    drop_path_steps=937_500,
    weight_decay=5e-4,
)
_SIZES = {
    "mobile": (224, {"num_cells": 12, "num_filters": 44, "num_stem_filters": 32}),
    "large": (331, {"num_cells": 18, "num_filters": 168, "num_stem_filters": 96}),
}


def _slim(size: str, settings: Settings) -> Model:
    image_size, widths = _SIZES[size]
    return Model(
        name=f"nasnet_{size}",
        function=functools.partial(nasnet, **widths, reduction_skips_a_cell=size == "large"),
        default_image_size=image_size,
        preprocessing="inception",
        num_classes=1001,
        settings=settings,
        decays=decays_all_kernels,
        source=f"TF-Slim's nasnet_{size}",
    )


def _keras(size: str) -> Model:
    """Return the network as keras.applications has it; it trains without dropout and decay."""
    slim = _slim(size, dataclasses.replace(_IMAGENET, dropout=0.0, weight_decay=0.0))
    return dataclasses.replace(
        slim,
        name=f"keras_{slim.name}",
        function=functools.partial(slim.function, has_zero_borders=True),
        num_classes=1000,
        source=f"keras.applications' NASNet{size.title()}",
    )


MODELS = (
    Model(
        name="nasnet_cifar",
        function=functools.partial(
            nasnet, num_cells=18, num_filters=32, num_stem_filters=96, is_for_imagenet=False
        ),
        default_image_size=32,
        preprocessing="cifarnet",
        num_classes=10,
        settings=_CIFAR,
        decays=decays_all_kernels,
        source="TF-Slim's nasnet_cifar",
    ),
    _slim("mobile", _IMAGENET),
    _slim("large", dataclasses.replace(_IMAGENET, drop_path=0.3, weight_decay=5e-5)),
    _keras("mobile"),
    _keras("large"),
)

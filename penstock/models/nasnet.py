"""NASNet-A and PNASNet-5: Zoph et al. 2018, Liu et al. 2018, TF-Slim's nasnet.py, pnasnet.py."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax

from penstock.models._nasnet_cells import (
    AVERAGE,
    IDENTITY,
    MAXIMUM,
    SEPARABLE_3,
    SEPARABLE_5,
    SEPARABLE_7,
    Cell,
    Cells,
    decays_all_kernels,
)
from penstock.models._registry import EndPoints, Model, Outputs, Settings, slim_model

NORMAL = Cell(
    sums=(
        ((SEPARABLE_5, 0), (SEPARABLE_3, 1)),
        ((SEPARABLE_5, 1), (SEPARABLE_3, 1)),
        ((AVERAGE, 0), (IDENTITY, 1)),
        ((AVERAGE, 1), (AVERAGE, 1)),
        ((SEPARABLE_3, 0), (IDENTITY, 0)),
    ),
    outputs=(1, 2, 3, 4, 5, 6),
)
REDUCTION = Cell(
    sums=(
        ((SEPARABLE_5, 0), (SEPARABLE_7, 1)),
        ((MAXIMUM, 0), (SEPARABLE_7, 1)),
        ((AVERAGE, 0), (SEPARABLE_5, 1)),
        ((IDENTITY, 3), (AVERAGE, 2)),
        ((SEPARABLE_3, 2), (MAXIMUM, 0)),
    ),
    outputs=(3, 4, 5, 6),
)
PROGRESSIVE = Cell(
    sums=(
        ((SEPARABLE_5, 1), (MAXIMUM, 1)),
        ((SEPARABLE_7, 0), (MAXIMUM, 0)),
        ((SEPARABLE_5, 0), (SEPARABLE_3, 0)),
        ((SEPARABLE_3, 4), (MAXIMUM, 0)),
        ((SEPARABLE_3, 1), (IDENTITY, 0)),
    ),
    outputs=(2, 3, 4, 5, 6),
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
) -> Outputs:
    """Build NASNet-A: three stacks of normal cells, with a reduction cell before two of them.

    Arguments:
      num_cells: total number of normal cells.
      num_filters: filters of the first stack; each reduction doubles them.
      is_for_imagenet: begin with a stride of 8 instead of 1.
      reduction_skips_a_cell: the second input of the first normal cell after a reduction is the
        reduction's second input, instead of its first.
      has_zero_borders: reduction cells pad with zeros, and count them, where they pool.
    """
    # Two reduction cells, and the stem's two: drop path grows along all of them.
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
        # TF-Slim makes it in training only. Here all programs share one tree of parameters, and the
        # compiler drops what no output needs.
        if index == reductions[1] - 1 and num_classes is not None:
            points["AuxLogits"] = cells.auxiliary_head(net, num_classes, name=f"aux_{index}")
    return cells.final_layer(outputs[-1], num_classes, points)


def pnasnet(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    num_cells: int,
    num_filters: int,
    num_stem_filters: int,
) -> Outputs:
    """Build PNASNet-5: three stacks of one kind of cell, the last two begin with a stride of 2.

    Arguments:
      num_cells: number of cells in the stacks.
      num_filters: filters of the first stack; each reduction doubles them.
    """
    cells = Cells(settings, num_cells + 2)
    outputs = cells.imagenet_stem(images, PROGRESSIVE, num_filters, num_stem_filters)
    points: EndPoints = {"Stem": outputs[-1]}
    reductions = (num_cells // 3, 2 * num_cells // 3)
    for index in range(num_cells):
        stride = 2 if index in reductions else 1
        num_filters *= stride
        name = f"cell_{index}"
        net = cells.cell(PROGRESSIVE, outputs, name=name, num_filters=num_filters, stride=stride)
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
    network = functools.partial(nasnet, **widths, reduction_skips_a_cell=size == "large")
    return slim_model(f"nasnet_{size}", network, image_size, settings, decays=decays_all_kernels)


def _keras(size: str) -> Model:
    slim = _slim(size, replace(_IMAGENET, dropout=0.0, weight_decay=0.0))
    return replace(
        slim,
        name=f"keras_{slim.name}",
        function=functools.partial(slim.function, has_zero_borders=True),
        num_classes=1000,
        source=f"keras.applications' NASNet{size.title()}",
    )


MODELS = (
    slim_model(
        "nasnet_cifar",
        functools.partial(
            nasnet, num_cells=18, num_filters=32, num_stem_filters=96, is_for_imagenet=False
        ),
        32,
        _CIFAR,
        preprocessing="cifarnet",
        num_classes=10,
        decays=decays_all_kernels,
    ),
    _slim("mobile", _IMAGENET),
    _slim("large", replace(_IMAGENET, drop_path=0.3, weight_decay=5e-5)),
    _keras("mobile"),
    _keras("large"),
    slim_model(
        "pnasnet_large",
        functools.partial(pnasnet, num_cells=12, num_filters=216, num_stem_filters=96),
        331,
        replace(_IMAGENET, drop_path=0.4),
        decays=decays_all_kernels,
    ),
    slim_model(
        "pnasnet_mobile",
        functools.partial(pnasnet, num_cells=9, num_filters=54, num_stem_filters=32),
        224,
        _IMAGENET,
        decays=decays_all_kernels,
    ),
)

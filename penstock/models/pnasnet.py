"""PNASNet-5 for ImageNet: Liu et al. 2018, TF-Slim's pnasnet.py."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax

from penstock.models._nasnet_cells import (
    IDENTITY,
    MAXIMUM,
    SEPARABLE_3,
    SEPARABLE_5,
    SEPARABLE_7,
    Cell,
    Cells,
    decays_all_kernels,
)
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models.nasnet import IMAGENET_SETTINGS

CELL = Cell(
    sums=(
        ((SEPARABLE_5, 1), (MAXIMUM, 1)),
        ((SEPARABLE_7, 0), (MAXIMUM, 0)),
        ((SEPARABLE_5, 0), (SEPARABLE_3, 0)),
        ((SEPARABLE_3, 4), (MAXIMUM, 0)),
        ((SEPARABLE_3, 1), (IDENTITY, 0)),
    ),
    outputs=(2, 3, 4, 5, 6),
)


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
    outputs = cells.imagenet_stem(images, CELL, num_filters, num_stem_filters)
    points: EndPoints = {"Stem": outputs[-1]}
    reductions = (num_cells // 3, 2 * num_cells // 3)
    for index in range(num_cells):
        stride = 2 if index in reductions else 1
        num_filters *= stride
        name = f"cell_{index}"
        net = cells.cell(CELL, outputs, name=name, num_filters=num_filters, stride=stride)
        outputs.append(net)
        points[f"Cell_{index}"] = net
        if index == reductions[1] - 1 and num_classes is not None:
            points["AuxLogits"] = cells.auxiliary_head(net, num_classes, name=f"aux_{index}")
    return cells.final_layer(outputs[-1], num_classes, points)


MODELS = (
    slim_model(
        "pnasnet_large",
        functools.partial(pnasnet, num_cells=12, num_filters=216, num_stem_filters=96),
        331,
        replace(IMAGENET_SETTINGS, drop_path=0.4),
        decays=decays_all_kernels,
    ),
    slim_model(
        "pnasnet_mobile",
        functools.partial(pnasnet, num_cells=9, num_filters=54, num_stem_filters=32),
        224,
        IMAGENET_SETTINGS,
        decays=decays_all_kernels,
    ),
)

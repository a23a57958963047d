"""PNASNet-5 for ImageNet: Liu et al. 2018, TF-Slim's pnasnet.py."""

from __future__ import annotations

import functools

import jax

from penstock.models._nasnet_cells import Cell, Cells, decays_all_kernels
from penstock.models._registry import EndPoints, Model
from penstock.models._settings import Settings

_SEPARABLE_3, _SEPARABLE_5, _SEPARABLE_7 = (("separable", size) for size in (3, 5, 7))
_MAXIMUM, _IDENTITY = ("max_pool", 3), ("identity", 1)

CELL = Cell(
    sums=(
        ((_SEPARABLE_5, 1), (_MAXIMUM, 1)),
        ((_SEPARABLE_7, 0), (_MAXIMUM, 0)),
        ((_SEPARABLE_5, 0), (_SEPARABLE_3, 0)),
        ((_SEPARABLE_3, 4), (_MAXIMUM, 0)),
        ((_SEPARABLE_3, 1), (_IDENTITY, 0)),
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
) -> tuple[jax.Array, EndPoints]:
    """Build PNASNet-5: three stacks of one kind of cell, which two times has a stride of 2.

    Arguments:
      num_cells: in all but the stem.
      num_filters: of the first stack; each reduction doubles them.
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


def _model(size: str, image_size: int, drop_path: float, **widths: int) -> Model:
    return Model(
        name=f"pnasnet_{size}",
        function=functools.partial(pnasnet, **widths),
        default_image_size=image_size,
        preprocessing="inception",
        num_classes=1001,
        settings=Settings(
            batch_norm_decay=0.9997,
            batch_norm_epsilon=1e-3,
            unbiased_running_variance=True,
            dropout=0.5,
            drop_path=drop_path,
            drop_path_steps=250_000,
            weight_decay=4e-5,
        ),
        decays=decays_all_kernels,
        source=f"TF-Slim's pnasnet_{size}",
    )


MODELS = (
    _model("large", 331, 0.4, num_cells=12, num_filters=216, num_stem_filters=96),
    _model("mobile", 224, 0.0, num_cells=9, num_filters=54, num_stem_filters=32),
)
